"""The lease of the active hub in PostgreSQL, and the fence that keeps out whoever has lost it (docs/explanation/two-hubs.md)."""
