"""Hub-managed services. The first one comes with the ledger."""
