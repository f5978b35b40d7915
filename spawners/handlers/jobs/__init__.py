"""Pages and REST of a user's jobs: acts, one job, its output, submitting it again."""
