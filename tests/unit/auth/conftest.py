"""Fixtures of the authenticator's tests; what they are made of is in ``auth_hub``."""

from auth_hub import directory, hub

__all__ = ["directory", "hub"]
