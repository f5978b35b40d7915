"""What is done around idle sessions: their orderly end, a policy tried on past sessions, the report, other cullers."""
