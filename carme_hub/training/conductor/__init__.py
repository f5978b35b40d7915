"""The conductor of a run: the base class, the kind with a fixed number of ranks, its steps and its companion."""
