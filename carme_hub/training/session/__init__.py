"""What a session has for its runs: the step broker, or srun in a batch job, and companions."""
