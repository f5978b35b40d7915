"""The start of a run: its price, its start, and the same run as a batch script."""
