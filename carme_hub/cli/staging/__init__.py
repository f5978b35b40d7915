"""``carme-hub staging``: results of sessions that are still on nodes, and the programs that nodes need for it."""
