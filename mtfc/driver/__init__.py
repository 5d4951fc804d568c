"""Everything that the command and the Python API share and that is neither: errors, defaults, options as Python values."""
