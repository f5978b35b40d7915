"""How a run begins: its price, its start, and the same as a batch script."""
