"""Use cases of the ledger: admit, settle, grant, reconcile, statement. All writes to the ledger go through them."""
