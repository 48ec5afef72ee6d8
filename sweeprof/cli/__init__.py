"""The command `sweeprof` and its subcommands.

Reasons for its design: docs/decisions/cli.md.
"""
