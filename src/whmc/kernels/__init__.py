"""Markov kernels: each a small pytree with `step(key, state, target, library)`."""
