"""Importing this reads the digits, once for all processes that are forked from the one that imported it."""

from sweeprof.datasets.digits import parts, scans

scans()
parts()
