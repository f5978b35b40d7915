"""Submit a job as its user: by slurmrestd, by sudo, or directly."""
