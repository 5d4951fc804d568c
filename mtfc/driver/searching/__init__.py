"""The search for a layout or a placement."""
