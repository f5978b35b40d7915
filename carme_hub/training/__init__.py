"""Training on many GPUs out of a notebook. Runs inside the user's container, and imports nothing of the hub."""
