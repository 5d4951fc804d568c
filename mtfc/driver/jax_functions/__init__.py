"""Plans for JAX functions: `mtfc.from_jax` gives a program, and a program gives plans."""
