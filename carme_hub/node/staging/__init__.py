"""Programs that move a session's data between its folder on a node and where it belongs; see ``mover``.

They are installed on nodes beside ``carme-stage-out`` (``carme-hub nodes install-staging``), owned by root, and run as
the user. The standard library alone, Python 3.6 or later.
"""
