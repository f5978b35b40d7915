"""The only door to the ledger: admit, settle, grant, reconcile, statement."""
