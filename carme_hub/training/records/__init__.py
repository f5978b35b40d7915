"""What is kept of a run so that it can be found, compared and repeated."""
