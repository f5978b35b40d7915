"""``carme-hub nodes``: update nodes in turn, and check whether a node is well."""
