"""Placements: degrees and devices for each operator of a program, as in FlexFlow; their search, simulation and execution."""
