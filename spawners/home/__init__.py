"""The parts of the hub's home page: sessions that run, what they use, and sessions that have ended."""
