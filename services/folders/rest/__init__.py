"""REST of shared folders."""
