"""Fixtures of the tests of shared folders."""

from folder_program import program  # noqa: F401  a fixture
