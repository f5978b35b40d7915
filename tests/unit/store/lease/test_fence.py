"""Whoever has lost the lease changes nothing any more, in both databases, and acts no more on Slurm."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyterhub import orm
from leased_databases import Databases, take, ticket
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from carme_hub import fencing
from carme_hub.errors import NotActive, SlurmUnreachable, StoreError
from carme_hub.fencing import VARIABLE, Ticket, ticket_of
from carme_hub.slurm.command import Commands, only_reads
from carme_hub.store.engine import CarmeStore, make_engine
from carme_hub.store.lease.fence import keep_out_late_writes, verify
from carme_hub.store.lease.lease import LeaseStore

WRITE = text("INSERT INTO note (cluster, name, at, actor, value) VALUES ('lab', :name, 5, '', '{}')")


@pytest.fixture
def opened(databases: Databases, host: LeaseStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, Ticket]]:
    """Our database as the active hub opens it."""
    mine = ticket(host, "one")
    monkeypatch.setenv(VARIABLE, str(mine))
    engine = CarmeStore(url=databases.ours).open()
    yield engine, mine
    fencing.check_with(None)
    engine.dispose()


def take_over(databases: Databases, host: LeaseStore) -> Ticket:
    databases.let_pass(13)
    return ticket(host, "two")


def names(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM note ORDER BY name")).scalars())


def test_after_a_take_over_the_former_hub_writes_nothing_and_still_reads(
    databases: Databases, host: LeaseStore, opened: tuple[Engine, Ticket]
) -> None:
    engine, mine = opened
    with engine.begin() as connection:
        connection.execute(WRITE, {"name": "before"})
    verify(engine, mine)
    other = take_over(databases, host)
    with pytest.raises(
        NotActive, match="Another hub is active: the lease of lab is token 2, and this hub's token was 1"
    ):
        with_retry(lambda: write(engine, "late"))
    with pytest.raises(NotActive):
        verify(engine, mine)
    assert names(engine) == ["before"]
    verify(engine, other)


def write(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(WRITE, {"name": name})


def with_retry(work: object) -> None:
    """Do it again where the connection was ended by the take-over, as a hub does."""
    assert callable(work)
    try:
        work()
    except OperationalError:
        work()


def test_a_transaction_that_was_open_at_the_take_over_is_ended_and_delays_it_not(
    databases: Databases, host: LeaseStore, opened: tuple[Engine, Ticket]
) -> None:
    """The former host is frozen within a transaction that has checked the lease."""
    engine, _ = opened
    connection = engine.connect()
    transaction = connection.begin()
    connection.execute(WRITE, {"name": "frozen"})
    began = time.monotonic()
    take_over(databases, host)
    assert time.monotonic() - began < 2
    with pytest.raises(OperationalError):  # the host thaws, and commits
        transaction.commit()
    connection.close()
    assert names(engine) == []


def test_a_transaction_is_committed_before_the_take_over_or_never(databases: Databases, host: LeaseStore) -> None:
    """One whose connection has another name, as behind a pooler that forgets it: the take-over waits for its row."""
    mine = ticket(host, "one")
    engine = make_engine(databases.ours)
    keep_out_late_writes(engine, mine)
    done: list[str] = []
    with engine.begin() as connection:
        connection.execute(WRITE, {"name": "in time"})
        connection.exec_driver_sql("SET application_name = 'pooler'")
        databases.let_pass(13)
        lease = take(host, "two")

        def take_fences() -> None:
            assert host.take_fences(lease.ticket)
            done.append("taken")

        taking = threading.Thread(target=take_fences)
        taking.start()
        time.sleep(0.5)
        done.append("committed")
    taking.join(10)
    assert done == ["committed", "taken"]
    assert names(engine) == ["in time"]
    with pytest.raises(NotActive):
        write(engine, "late")
    engine.dispose()


def test_a_lock_of_a_frozen_hub_that_has_not_written_yet_is_ended_too(
    databases: Databases, host: LeaseStore, opened: tuple[Engine, Ticket]
) -> None:
    """The ledger takes its lock before it reads and writes."""
    engine, _ = opened
    connection = engine.connect()
    connection.begin()
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(77)")
    take_over(databases, host)
    other = make_engine(databases.ours)
    with other.begin() as next_one:
        next_one.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        next_one.exec_driver_sql("SELECT pg_advisory_xact_lock(77)")
    other.dispose()
    with pytest.raises(OperationalError):
        connection.exec_driver_sql("SELECT 1")
    connection.close()


def test_a_copy_of_the_database_that_only_reads_never_says_that_a_hub_is_active(
    databases: Databases, host: LeaseStore
) -> None:
    """It may be behind, and name the holder of before."""
    mine = ticket(host, "one")
    copy = create_engine(databases.ours, execution_options={"postgresql_readonly": True})
    with pytest.raises(StoreError, match="not known whether"):
        verify(copy, mine)
    copy.dispose()


def test_a_savepoint_that_is_rolled_back_does_not_loosen_the_check(
    databases: Databases, host: LeaseStore, opened: tuple[Engine, Ticket]
) -> None:
    engine, _ = opened
    connection = engine.connect()
    connection.begin()
    savepoint = connection.begin_nested()
    connection.execute(WRITE, {"name": "undone"})
    savepoint.rollback()  # gives the row of the fence back, too
    connection.exec_driver_sql("SET application_name = 'pooler'")
    take_over(databases, host)
    with pytest.raises((NotActive, OperationalError)):
        connection.execute(WRITE, {"name": "late"})
    connection.close()
    assert names(engine) == []


def test_a_hub_that_is_not_active_upgrades_no_database(
    databases: Databases, host: LeaseStore, opened: tuple[Engine, Ticket]
) -> None:
    """It was frozen in its start, and the other one may be of an older release."""
    take_over(databases, host)
    engine = make_engine(databases.ours)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE carme_alembic_version SET version_num = 'carme0011'")
    engine.dispose()
    with pytest.raises(NotActive):
        CarmeStore(url=databases.ours, upgrade=True).open()


def test_jupyterhubs_own_database_is_fenced_too(databases: Databases, host: LeaseStore) -> None:
    mine = ticket(host, "one")
    session = orm.new_session_factory(databases.theirs)()
    keep_out_late_writes(session.get_bind(), mine)
    session.add(orm.User(name="ada"))
    session.commit()
    take_over(databases, host)

    def late() -> None:
        session.rollback()
        session.add(orm.User(name="late"))
        session.commit()

    with pytest.raises(NotActive):
        with_retry(late)
    session.rollback()
    assert [user.name for user in session.query(orm.User)] == ["ada"]
    session.close()
    session.get_bind().dispose()


async def test_commands_that_change_slurm_are_not_run_by_a_hub_that_is_not_active(
    databases: Databases, host: LeaseStore, opened: tuple[Engine, Ticket], tmp_path: Path
) -> None:
    mark = tmp_path / "bin" / "scancel"
    mark.parent.mkdir()
    for name in ("scancel", "squeue"):
        program = mark.with_name(name)
        program.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/run\n")
        program.chmod(0o755)
    commands = Commands(prefix=str(tmp_path))
    assert (await commands.query("scancel", "7")).code == 0
    take_over(databases, host)
    with pytest.raises(SlurmUnreachable, match="scancel was not run: "):
        await commands.query("scancel", "8")
    with pytest.raises(SlurmUnreachable, match="scancel was not run: Another hub is active"):
        await commands.query("scancel", "8")
    assert (await commands.query("squeue")).code == 0
    assert (tmp_path / "run").read_text() == "scancel\nsqueue\n"


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("squeue --states=all", True),
        ("sacct --duplicates", True),
        ("scontrol show node --details", True),
        ("scontrol --oneliner show job 7", True),
        ("scontrol ping", True),
        ("scontrol --version", True),
        ("sacctmgr --readonly --parsable2 show user", True),
        ("scontrol update JobId=7 TimeLimit=9", False),
        ("scontrol create reservation show=1", False),
        ("scontrol", False),
        ("sacctmgr --immediate modify user show", False),
        ("scancel 7", False),
        ("sudo -n -u ada /usr/local/libexec/carme-submit", False),
        ("/usr/bin/python3 -I -c show", False),
    ],
)
def test_what_is_not_known_to_only_read_is_checked(line: str, *, harmless: bool) -> None:
    name, *words = line.split()
    assert only_reads(name, words) is harmless


def test_a_ticket_is_read_back_from_the_environment() -> None:
    mine = Ticket(7, "5ad1", "a:b")
    assert ticket_of({VARIABLE: str(mine)}) == mine
    assert ticket_of({}) is None
    with pytest.raises(fencing.ConfigError, match="only carme-hub standby sets it"):
        ticket_of({VARIABLE: "seven"})
