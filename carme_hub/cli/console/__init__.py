"""``carme-hub console``: what administrators see and do, from a terminal or a script."""
