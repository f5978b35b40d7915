"""Use cases of sessions: registry, submission, and the reconciler that compares them with Slurm."""
