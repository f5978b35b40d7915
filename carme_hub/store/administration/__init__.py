"""The database of what administrators do."""
