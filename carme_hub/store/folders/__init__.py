"""Shared folders in the database: the wish, what was applied of it, and what was done."""
