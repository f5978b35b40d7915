"""Shared folders in the database: the desired state, what was applied of it, and what was done."""
