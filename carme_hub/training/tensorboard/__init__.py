"""TensorBoard in a session, on a Unix socket; the hub sends its two files to the session."""
