"""Pages and REST of ours in the hub."""
