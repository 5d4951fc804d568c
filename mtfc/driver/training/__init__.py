"""Training for many steps: the data, the loop, and the checkpoints."""
