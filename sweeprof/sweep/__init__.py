"""Sweeps: a plan of combinations, run as trials in processes of their own. The only room that touches processes."""
