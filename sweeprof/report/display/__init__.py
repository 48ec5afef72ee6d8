"""The objects of the library at the Python prompt and in notebooks."""
