"""Views on how long layers take."""
