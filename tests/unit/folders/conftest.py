"""Fixtures of the tests of shared folders."""

import pytest
from forged_folders import Site
from rig.databases import database_url, engine, one_postgres
from rig.folder_program import Program, program
from sqlalchemy import Engine

__all__ = ["database_url", "engine", "one_postgres", "program"]


@pytest.fixture
def site(program: Program, engine: Engine) -> Site:
    """The use cases, on both databases."""
    return Site(program, engine)
