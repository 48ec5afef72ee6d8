"""Interactive exploration of a comparison within the HTML page, without running anything again."""
