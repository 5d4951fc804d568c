"""Training for hours: data, checkpoints, metrics, several processes."""
