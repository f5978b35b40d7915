"""Pages of what jobs used: a user's own jobs, what accounts did not use, and the end of the weekly mail."""
