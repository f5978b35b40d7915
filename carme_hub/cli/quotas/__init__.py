"""``carme-hub quotas``: GPU time for the administrator on the hub's machine; on the ledger.s database itself."""
