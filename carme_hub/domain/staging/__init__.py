"""Data that a session has copied to its node before it starts, and from it after its end. Pure."""
