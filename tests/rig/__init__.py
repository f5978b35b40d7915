"""Shared code of the tests on real parts: a hub in front of the sandbox, and an oracle that checks invariants."""
