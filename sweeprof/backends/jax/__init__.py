"""Keras on JAX. ``adapter`` is the backend; importing it starts no thread, so a fork server may import it."""
