"""REST of what jobs use, and where reporters send their minutes."""
