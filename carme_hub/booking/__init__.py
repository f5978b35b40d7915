"""Use cases of the calendar: book, move, cancel and release reservations, and reconcile them with Slurm."""
