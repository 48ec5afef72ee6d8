"""Reports: text and pictures made from a comparison, without any input or output of their own."""
