"""Profiles of chosen steps: torch's profiler, and what its events say in a few sentences."""
