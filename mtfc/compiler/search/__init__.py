"""Searches: which layouts to choose."""
