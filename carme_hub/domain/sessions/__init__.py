"""Sessions, the profiles they are started from, when they can start, and the liveness of their jobs. Pure."""
