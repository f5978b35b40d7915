"""The `carme-hub` command."""
