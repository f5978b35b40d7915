"""Clients of a session's services for runs: the step broker (or srun in a batch job), and the hub's companions."""
