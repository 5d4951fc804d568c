"""Code that the command and the Python API share: errors, defaults, options as Python values."""
