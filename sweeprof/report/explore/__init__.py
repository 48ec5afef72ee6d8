"""What a reader can ask of a comparison within the page, without running anything again."""
