"""Checks of this machine: its hardware, what disturbs measurements on it, and which differences can be measured on it."""
