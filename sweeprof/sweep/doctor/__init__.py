"""What a machine offers, what disturbs measurements on it, and which differences can be seen there."""
