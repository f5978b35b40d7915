"""TensorBoard in a session."""
