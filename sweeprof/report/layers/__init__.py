"""A layer table in the formats that people pass on, one file each, and what they share."""
