"""What a session is, what may be asked for, and what may be said of its job. Pure."""
