"""Placements on JAX devices: a program under a placement becomes a module in which every device runs programs of its own."""
