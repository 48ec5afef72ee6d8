"""Reports: text and pictures made from a comparison, without any input or output of their own.

Reasons for its design: docs/decisions/report.md.
"""
