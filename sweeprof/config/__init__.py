"""Configs: where they are, what each key must hold, and what is said about mistakes."""
