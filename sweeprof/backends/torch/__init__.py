"""PyTorch. ``adapter`` is the backend; ``counting`` counts its models."""
