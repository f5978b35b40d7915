"""``carme-hub explain``: the whole story of one session, in order of time."""
