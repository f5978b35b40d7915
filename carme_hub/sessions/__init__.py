"""Use cases of a session: open, submit, adopt, cancel, close."""
