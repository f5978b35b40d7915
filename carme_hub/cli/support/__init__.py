"""``carme-hub support-bundle``: what somebody else needs to help, in one file without secrets."""
