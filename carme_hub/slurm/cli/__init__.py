"""The Slurm client over Slurm's commands, and the parsers of their output."""
