"""``carme-hub folders``: shared folders, on the command line, through the folders service's REST API."""
