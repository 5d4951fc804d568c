"""Files and arrays that a program reads and writes."""
