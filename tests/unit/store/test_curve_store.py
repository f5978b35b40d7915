"""The newest curve of each image and script is kept, of its user and cluster alone, and not without end."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from carme_hub.errors import StoreError
from carme_hub.store.scaling import MAX_CURVES, CurveStore


@pytest.fixture
def curves(engine: Engine) -> CurveStore:
    return CurveStore(engine, "lab")


def test_a_newer_curve_takes_the_place_of_an_older_one(curves: CurveStore) -> None:
    curves.put("alice", "training", "train.py", 1.0, {"ranks": 2})
    curves.put("alice", "training", "other.py", 3.0, {"ranks": 8})
    curves.put("alice", "training", "train.py", 2.0, {"ranks": 4})
    assert curves.of("alice") == [("training", "other.py", {"ranks": 8}), ("training", "train.py", {"ranks": 4})]


def test_curves_are_their_users_and_their_clusters(curves: CurveStore, engine: Engine) -> None:
    curves.put("alice", "training", "train.py", 1.0, {})
    assert curves.of("bob") == []
    assert CurveStore(engine, "elsewhere").of("alice") == []


def test_the_oldest_make_way(curves: CurveStore) -> None:
    curves.put("bob", "i", "train.py", 0.0, {})
    for number in range(MAX_CURVES + 3):
        curves.put("alice", "i", f"{number}.py", float(number), {})
    assert [script for _, script, _ in curves.of("alice")] == [f"{n}.py" for n in range(MAX_CURVES + 2, 2, -1)]
    assert len(curves.of("bob")) == 1


def test_a_database_that_does_not_answer_is_a_store_error(curves: CurveStore, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE scaling"))
    with pytest.raises(StoreError):
        curves.of("alice")
    with pytest.raises(StoreError):
        curves.put("alice", "i", "s", 1.0, {})
