"""Pages of images: the catalogue, one image, and the board of nodes."""
