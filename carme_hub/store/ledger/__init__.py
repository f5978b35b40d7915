"""The ledger in the database."""
