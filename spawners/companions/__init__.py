"""More nodes for a running session: what they cost, opened and given back, and their job."""
