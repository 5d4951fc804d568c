"""The effects on a step, one file each, with a lower bound under every layout."""
