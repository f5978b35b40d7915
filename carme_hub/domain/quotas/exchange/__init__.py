"""Quotas and grants of accounts as rows of a table, to come in from a file or from Slurm, and to go out."""
