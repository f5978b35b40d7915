"""More nodes for a running session."""
