"""The placement search: degrees and devices for each operator, as FlexFlow finds them (command: `--space soap`)."""
