"""Rules on idle sessions, and their place in the policy."""
