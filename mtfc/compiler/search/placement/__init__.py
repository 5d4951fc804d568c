"""The `soap` space: degrees and devices for each operator, found as FlexFlow does."""
