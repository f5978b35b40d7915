"""What conducts a run: base, the kind with a fixed number of ranks, and its companion."""
