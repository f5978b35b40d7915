"""TensorBoard in a session, on a unix socket; its two files travel to the session by themselves."""
