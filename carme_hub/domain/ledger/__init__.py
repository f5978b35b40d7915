"""Ledger entries, prices, expiring credits, and the usage that is charged. Pure."""
