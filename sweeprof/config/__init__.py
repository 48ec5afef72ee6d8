"""Configs: the keys and their constraints, the validation of configs, and the messages about mistakes."""
