"""What tests on real parts share: a hub in front of the sandbox, and an oracle that watches it."""
