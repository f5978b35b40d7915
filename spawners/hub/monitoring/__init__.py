"""What the hub says of itself: metrics that are read at each scrape, and whether it is ready."""
