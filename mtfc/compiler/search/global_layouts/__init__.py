"""The best global layout (Mesh-TensorFlow): one map from dimensions to mesh axes for the whole program."""
