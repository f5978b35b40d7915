"""``carme-hub activity``: what jobs used, on the command line, through the activity service's REST API."""
