"""What administrators do, each act with who and why, and what users see of it."""
