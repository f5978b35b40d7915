"""``carme-hub users``: people who leave, and users who may not log in."""
