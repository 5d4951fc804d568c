"""Models built in Python, call by call: each call is a statement of a program in the language."""
