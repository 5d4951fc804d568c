"""Comparison of layouts with the undistributed program."""
