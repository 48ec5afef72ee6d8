"""Keras on TensorFlow. ``adapter`` is the backend; ``counting`` counts its models."""
