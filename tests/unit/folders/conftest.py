"""Fixtures of the tests of shared folders."""

from collections.abc import AsyncIterator

import pytest
from forged_folders import Site
from rig.databases import database_url, engine, one_postgres
from rig.folder_program import Program, program
from sqlalchemy import Engine

__all__ = ["database_url", "engine", "one_postgres", "program"]


@pytest.fixture
async def site(program: Program, engine: Engine) -> AsyncIterator[Site]:
    """The use cases, on both databases; what takes long has ended before the database and the folders go."""
    found = Site(program, engine)
    yield found
    await found.reconciler.walks_done()
