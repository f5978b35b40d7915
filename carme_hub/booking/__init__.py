"""Use cases of the calendar: booking, moving, cancelling and giving back, and that Slurm keeps what was promised."""
