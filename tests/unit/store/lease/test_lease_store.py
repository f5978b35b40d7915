"""The lease: one host has it, by the database's clock, and each take-over has a higher token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from leased_databases import Databases, take, ticket
from sqlalchemy import text

from carme_hub.errors import ConfigError, NotActive, StoreError
from carme_hub.store.engine import make_engine
from carme_hub.store.lease.fence import refuse_without_lease, verify
from carme_hub.store.lease.lease import LeaseStore


@pytest.fixture
def hosts(databases: Databases) -> Iterator[tuple[LeaseStore, LeaseStore]]:
    both = databases.host(), databases.host()
    yield both
    for each in both:
        each.close()


def test_the_second_host_waits_until_the_first_has_been_silent_for_the_time_of_the_lease(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    one, two = hosts
    assert one.read() is None
    first = ticket(one, "one")
    seen = take(two, "two")
    assert (seen.holder, seen.host, seen.token, seen.free) == ("one", "host of one", 1, False)
    assert 0 <= seen.age < 5
    databases.let_pass(11)
    assert take(two, "two").holder == "one"
    assert one.renew(first)
    databases.let_pass(11)
    assert take(two, "two").holder == "one"
    databases.let_pass(2)
    second = ticket(two, "two")
    assert second.token == 2
    assert not one.renew(first)
    assert not one.release(first)
    assert not one.take_fences(first)
    assert two.renew(second)


def test_a_lease_that_has_run_out_is_not_renewed_although_nobody_took_it(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    one, _ = hosts
    mine = ticket(one, "one")
    databases.let_pass(13)
    assert not one.renew(mine)
    assert ticket(one, "again").token == 2


def test_a_lease_that_was_given_back_is_free_at_once(hosts: tuple[LeaseStore, LeaseStore]) -> None:
    one, two = hosts
    assert one.release(ticket(one, "one"))
    found = one.read()
    assert found is not None
    assert found.free
    assert ticket(two, "two").token == 2


def test_a_clock_of_the_database_that_was_set_back_does_not_hold_the_lease_for_as_long(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    """It fails over to a server whose clock is an hour behind."""
    one, two = hosts
    first = ticket(one, "one")
    databases.let_pass(-3600)
    assert take(two, "two").holder == "one"
    databases.let_pass(11)
    assert take(two, "two").holder == "one", "it counts from when that was seen"
    assert one.renew(first)
    databases.let_pass(13)
    assert ticket(two, "two").token == 2


def test_a_schema_that_the_address_names_is_used_for_the_lease_too(databases: Databases) -> None:
    engine = make_engine(databases.ours)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA elsewhere")
    here = f"{databases.ours}&options=-csearch_path%3Delsewhere"
    host = LeaseStore(here, databases.theirs, "lab")
    ticket(host, "one")
    host.close()
    with engine.connect() as connection:
        found = connection.execute(text("SELECT schemaname FROM pg_tables WHERE tablename = 'carme_hub_lease'"))
        assert list(found.scalars()) == ["elsewhere"]
    engine.dispose()


def test_of_many_hosts_that_ask_at_once_one_has_it(databases: Databases) -> None:
    several = [databases.host() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pair: take(pair[1], f"host {pair[0]}"), enumerate(several)))
    assert len({lease.holder for lease in found}) == 1
    assert {lease.token for lease in found} == {1}
    for each in several:
        each.close()


def test_tokens_grow_also_where_a_database_was_restored_from_an_older_copy(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    one, two = hosts
    for turn in range(3):
        assert one.release(ticket(one, f"turn {turn}"))
    engine = make_engine(databases.ours)
    with engine.begin() as connection:  # JupyterHub's database is the newer one
        connection.execute(text("UPDATE carme_hub_lease SET token = 1"))
        connection.execute(text("UPDATE carme_hub_fence SET token = 1"))
    engine.dispose()
    assert ticket(two, "two").token == 4


def test_before_the_first_lease_it_is_seen_who_uses_the_hubs_database(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    one, two = hosts
    until = time.monotonic() + 10
    while one.unleased() and time.monotonic() < until:  # PostgreSQL ends a closed connection a moment later
        time.sleep(0.02)
    assert (two.unleased(), one.unleased()) == ("", "")
    hub = make_engine(databases.theirs)
    with hub.connect():
        assert "postgres from this machine (pid " in one.unleased()
    hub.dispose()


def test_a_hub_without_lease_is_refused_where_there_is_one_until_it_is_removed(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    one, _ = hosts
    refuse_without_lease(databases.ours, "lab")
    mine = ticket(one, "one")
    with pytest.raises(NotActive, match=r"last on host of one.*carme-hub standby --remove"):
        refuse_without_lease(databases.ours, "lab")
    refuse_without_lease(databases.ours, "another cluster")
    assert not one.remove()
    assert one.release(mine)
    assert one.remove()
    refuse_without_lease(databases.ours, "lab")


def test_a_host_with_other_secrets_never_has_the_lease_until_they_are_forgotten(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    one, two = hosts
    mine = ticket(one, "one")
    databases.let_pass(13)
    seen = two.acquire("two", "host of two", 12.0, "other secrets", "0.3.0")
    assert (seen.holder, seen.secrets, seen.token) == ("one", "secrets", 1)
    assert one.release(ticket(one, "again"))
    assert two.acquire("two", "host of two", 12.0, "other secrets", "0.3.0").holder == ""
    again = ticket(one, "once more")
    assert not one.forget_secrets(), "while a host has the lease"
    assert one.release(again)
    assert two.forget_secrets()
    assert two.acquire("two", "host of two", 12.0, "other secrets", "0.3.0").holder == "two"
    assert not one.renew(mine)


def test_hosts_that_name_the_cluster_differently_are_never_both_active(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    """Each would have a lease of its own, and they have one JupyterHub's database."""
    one, _ = hosts
    mine = ticket(one, "one")
    other = LeaseStore(databases.ours, databases.theirs, "cluster")
    lease = take(other, "two")
    with pytest.raises(ConfigError, match=r"that of the hub of lab, .*CarmeSlurm\.cluster is cluster.*--remove"):
        other.take_fences(lease.ticket)
    verify_engine = make_engine(databases.theirs)
    verify(verify_engine, mine)
    verify_engine.dispose()
    assert other.release(lease.ticket)
    assert one.release(mine)
    assert one.remove()
    ticket(other, "after the cluster was renamed")
    other.close()


def test_without_postgresql_it_says_that_it_cannot_be_had(databases: Databases) -> None:
    with pytest.raises(ConfigError, match=r"second hub cannot be had with CarmeStore\.url = sqlite.*two-hubs\.md"):
        LeaseStore("sqlite:///carme.sqlite", databases.theirs, "lab")
    with pytest.raises(ConfigError, match=r"JupyterHub\.db_url = sqlite"):
        LeaseStore(databases.ours, "sqlite:///jupyterhub.sqlite", "lab")


def test_a_database_that_does_not_answer_is_an_error_in_time(databases: Databases) -> None:
    gone = databases.ours.partition("?")[0] + "?host=/nowhere"
    host = LeaseStore(gone, databases.theirs, "lab")
    with pytest.raises(StoreError, match="out of reach"):
        take(host, "one")
    host.close()


def test_a_hub_without_lease_does_not_start_while_nobody_knows_whether_it_needs_one(databases: Databases) -> None:
    """The database may answer a moment later, and JupyterHub's own may be another one."""
    gone = databases.ours.partition("?")[0] + "?host=/nowhere"
    with pytest.raises(StoreError, match="not known whether the hub of lab needs a lease"):
        refuse_without_lease(gone, "lab")


def test_a_database_that_only_reads_gives_and_renews_no_lease(
    databases: Databases, hosts: tuple[LeaseStore, LeaseStore]
) -> None:
    """It may be a copy, to which the site's PostgreSQL has failed over before it takes changes."""
    one, _ = hosts
    mine = ticket(one, "one")
    name = databases.ours.partition("?")[0].rpartition("/")[2]
    engine = make_engine(databases.ours)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    engine.dispose()
    copy = databases.host()
    with pytest.raises(StoreError, match=r"out of reach: .*read-only transaction"):
        copy.renew(mine)
    databases_of_others = databases.host()
    with pytest.raises(StoreError, match="read-only transaction"):
        take(databases_of_others, "two")
    copy.close()
    databases_of_others.close()
