"""The effects on a step, one file each: the exact cost, and a lower bound under every layout."""
