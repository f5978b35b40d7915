"""The newest list of a user's runs is kept, of its user and cluster alone."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from carme_hub.errors import StoreError
from carme_hub.store.runs import RunStore


@pytest.fixture
def runs(engine: Engine) -> RunStore:
    return RunStore(engine, "lab")


def test_a_newer_list_takes_the_place_of_an_older_one(runs: RunStore, engine: Engine) -> None:
    assert runs.of("alice") == (0.0, [])
    runs.put("alice", 1.0, [{"id": "a"}])
    runs.put("alice", 2.0, [{"id": "b"}, {"id": "a"}])
    runs.put("bob", 3.0, [])
    assert runs.of("alice") == (2.0, [{"id": "b"}, {"id": "a"}])
    assert runs.of("bob") == (3.0, [])
    assert RunStore(engine, "elsewhere").of("alice") == (0.0, [])


def test_a_database_that_does_not_answer_is_a_store_error(runs: RunStore, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE runs"))
    with pytest.raises(StoreError):
        runs.of("alice")
    with pytest.raises(StoreError):
        runs.put("alice", 1.0, [])
