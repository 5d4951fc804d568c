"""The road from a file and the options to a program, its layouts and a machine."""
