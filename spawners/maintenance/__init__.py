"""Sessions in the way of maintenance."""
