"""LiteRT (TensorFlow Lite). ``adapter`` is the backend, which loads nothing but the interpreter; ``convert`` makes its files."""
