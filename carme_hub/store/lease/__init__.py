"""The active hub's lease in PostgreSQL, and the fence around the databases (docs/explanation/two-hubs.md)."""
