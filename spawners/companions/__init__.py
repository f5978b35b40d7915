"""Companions, which give more nodes to a running session: cost, opening, giving back, and their jobs."""
