"""A layer table as text, as HTML and as tables for other programs; its columns, nesting, sums and remarks."""
