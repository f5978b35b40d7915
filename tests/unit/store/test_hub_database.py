"""JupyterHub opens its own database in WAL mode with what ``configure`` sets, and other databases as ever."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from jupyterhub import orm
from sqlalchemy import create_engine
from traitlets.config import Config

from carme_hub import configure
from carme_hub.errors import StoreError
from carme_hub.store.hub_database import flush_wal, wal_options


def test_jupyterhub_opens_its_database_in_wal_mode_and_commits_survive(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    c = Config()
    configure(c, state_folder=tmp_path)
    factory = orm.new_session_factory(c.JupyterHub.db_url, **c.JupyterHub.db_kwargs)
    db = factory()
    db.add(orm.User(name="alice"))
    db.commit()
    # Seen by another connection while the first one is open, as after a kill -9 of the hub.
    other = sqlite3.connect(tmp_path / "jupyterhub.sqlite")
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert other.execute("SELECT name FROM users").fetchall() == [("alice",)]
    other.close()
    flush_wal(factory.kw["bind"])
    db.close()
    factory.kw["bind"].dispose()
    flush_wal(factory.kw["bind"])  # the log has gone with the last connection


def test_a_disk_that_does_not_take_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub.sqlite-wal").mkdir()
    with pytest.raises(StoreError, match="disk"):
        flush_wal(create_engine(f"sqlite:///{tmp_path}/jupyterhub.sqlite"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql+psycopg://hub@db/hub"])
def test_other_databases_are_opened_as_ever(url: str) -> None:
    assert wal_options(url) == {}


def test_what_the_site_sets_counts(tmp_path: Path) -> None:
    c = Config()
    c.JupyterHub.db_kwargs = {"pool_size": 3}
    configure(c)
    assert c.JupyterHub.db_kwargs == {"pool_size": 3}
