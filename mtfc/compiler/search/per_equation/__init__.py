"""The search for tilings: a layout for each equation, as SoyBean chooses them (arXiv:1805.04170)."""
