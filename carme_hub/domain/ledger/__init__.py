"""Entries of the ledger, what they cost, and the use that they are of. Pure."""
