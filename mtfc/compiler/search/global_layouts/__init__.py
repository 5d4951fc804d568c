"""Mesh-TensorFlow's layouts: one map from dimensions to mesh axes for the whole program. `search.py` finds the best of them."""
