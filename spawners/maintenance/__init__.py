"""Sessions in the way of maintenance, and what their users are offered."""
