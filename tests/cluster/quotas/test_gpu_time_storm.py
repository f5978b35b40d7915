"""S5 on a real hub: a budget for ten sessions and 200 starts at once, through form, REST and command line.

Two services settle the same ledger meanwhile, and one of them is killed. On SQLite and on PostgreSQL.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from rig.databases import OnePostgres, one_postgres
from rig.hub import Hub, Person, wait_for
from rig.nightly import NIGHTLY
from storm_parts import TIMEOUT, USERS, Choice, Storm, storm_hub

from carme_hub.sandbox.demo import DEFAULT_POLICY
from carme_hub.store.check import check

__all__ = ["one_postgres"]
STARTS, BUDGET, MINUTES = 200, 10, 15
#: Two types, so that there are GPUs for all who are let in.
CHOICES: tuple[Choice, ...] = (
    {"profile": "a100", "gpu_type": "a100", "gpus": 1, "time_minutes": MINUTES},
    {"profile": "mig", "gpu_type": "1g.10gb", "gpus": 1, "time_minutes": MINUTES},
)
#: Seconds that a command needs before its request; every second time the other interfaces wait for it.
AHEAD = 1.5
#: Of the starts on the command line, how many are processes of their own; each takes half a second of a core.
PROCESSES = 6
SERVICE = "/services/quotas/"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def storm(
    request: pytest.FixtureRequest, site: Hub, one_postgres: OnePostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Storm]:
    """A separate hub on each database; earlier jobs of this cluster are in its ledger as jobs from outside."""
    folder = tmp_path_factory.mktemp("tokens")
    try:
        if request.param == "postgresql":
            with one_postgres.server().database() as url, storm_hub(site, request.param, url, folder) as found:
                yield found
        else:
            with storm_hub(site, request.param, "", folder) as found:
                yield found
    finally:
        site.demo.set_policy(DEFAULT_POLICY)


def set_budget(storm: Storm) -> None:
    """Set a budget in which ten sessions fit and no eleventh."""
    quota = {"id": "storm", "group": "carme-users", "together": True, "window": "total"}
    minutes = storm.used_minutes() + BUDGET * MINUTES
    storm.site.demo.set_policy({"quotas": [{**quota, "gpu_time": f"{minutes} min"}]})


StartFunction = Callable[[str, str, Choice], int]


def interfaces(storm: Storm) -> list[tuple[str, StartFunction]]:
    """Return the interface of each start: a third each, a few of the commands as separate processes."""
    commands: list[tuple[str, StartFunction]] = [("process", storm.by_process)] * PROCESSES
    commands += [("command", storm.by_command)] * (STARTS // 3 - PROCESSES)
    found: list[tuple[str, StartFunction]] = []
    for _ in range(-(-STARTS // 3)):
        found += [("form", storm.by_form), ("rest", storm.by_rest), *([commands.pop()] if commands else [])]
    return found[:STARTS]


def all_started(storm: Storm) -> bool:
    """Return whether every job runs, or waits only for GPUs."""
    return all(job["state"] == "RUNNING" or job["reason"] in ("Resources", "Priority") for job in storm.site.jobs())


@pytest.mark.parametrize("repeat", range(20 if NIGHTLY else 2))
def test_exactly_as_many_are_granted_as_the_budget_has_and_nothing_fails(storm: Storm, repeat: int) -> None:
    began = time.monotonic()
    second, first = storm.second_service(), storm.service()
    victim = (first, second)[repeat % 2]
    set_budget(storm)
    before = storm.last_entry()
    together = threading.Barrier(STARTS + 1)

    def start(number: int, interface: str, call: StartFunction) -> tuple[str, int]:
        user, name = USERS[number % len(USERS)], f"s{number // len(USERS)}" if number >= len(USERS) else ""
        together.wait(30)
        time.sleep(AHEAD if repeat % 2 and interface in ("form", "rest") else 0)
        return interface, call(user, name, CHOICES[number % 2])

    with ThreadPoolExecutor(STARTS) as pool:
        starts = [pool.submit(start, number, *interface) for number, interface in enumerate(interfaces(storm))]
        together.wait(30)
        stormed = time.monotonic()
        wait_for(lambda: storm.open_holds() >= 3, TIMEOUT, "the first holds")
        os.kill(victim, signal.SIGKILL)
        outcomes = Counter(each.result() for each in starts)
    answered = time.monotonic()
    assert sum(outcomes.values()) == STARTS
    # JupyterHub answers a start that takes long before it is decided on.
    wait_for(
        lambda: storm.active() <= max(BUDGET, storm.open_holds()), TIMEOUT, f"all starts to be decided on: {outcomes}"
    )
    assert storm.open_holds() == BUDGET, outcomes
    assert not [each for each in outcomes if each[1] >= 500 or (each[0] in ("command", "process") and each[1] == 2)]
    assert outcomes["process", 0] + outcomes["process", 1] == PROCESSES
    held = storm.rows(
        "select session, amount from ledger where kind = 'hold' and id > :before order by id", before=before
    )
    assert [row.amount for row in held] == [-MINUTES * 60_000] * BUDGET, "nobody else was ever let in"
    assert len({row.session for row in held}) == BUDGET
    wait_for(lambda: len(storm.site.jobs()) == BUDGET and all_started(storm), TIMEOUT, "the jobs to run")
    assert len({job["name"] for job in storm.site.jobs()}) == BUDGET, "one job for each session"
    ran = time.monotonic()

    storm.site.stop_all()
    wait_for(lambda: storm.open_holds() == 0, 120, "what was held to be given back")
    settled = time.monotonic()
    wait_for(lambda: storm.service() not in (0, victim), 60, "the hub's service to run")
    sums = storm.rows(
        "select session, sum(amount) as amount, count(*) as entries from ledger"
        " where kind in ('hold', 'release') and id > :before group by session",
        before=before,
    )
    assert [(row.amount, row.entries) for row in sums] == [(0, 2)] * BUDGET
    found = check(storm.url)
    assert found.passed, found
    assert "Traceback" not in storm.second_log.read_text()
    reasons = storm.rows("select reason from ledger where kind = 'release' and id > :before", before=before)
    print(
        f"{storm.url.partition(':')[0]} {repeat}: answered {answered - stormed:.1f} s, ran {ran - answered:.1f} s, "
        f"stopped and settled {settled - ran:.1f} s, in all {time.monotonic() - began:.1f} s; "
        f"{sorted(outcomes.items())}; {Counter(row.reason for row in reasons)}"
    )


def test_the_charges_are_equal_to_slurms_accounting(storm: Storm) -> None:
    answer = storm.site.request(
        "POST",
        f"{SERVICE}api/v1/reconciliation",
        json.dumps({"end": int(time.time()) - 5}),
        {
            "Authorization": f"token {storm.tokens['ada']}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"storm-{time.time()}",
        },
        timeout=TIMEOUT,
    )
    assert answer.status == 200, answer
    assert answer.body["difference"] == 0, answer.body


def test_pages_and_rest_are_served_from_this_database(storm: Storm) -> None:
    alice, ada = (copied(storm.people[user]) for user in ("alice", "ada"))
    for path in ("", "accounts", "statement.csv"):
        assert alice.get(SERVICE + path).status == 200, path
    for path in ("", "/anomalies", "/health", "/policy", "/report", "/requests"):
        assert ada.get(f"{SERVICE}administration{path}").status == 200, path
        assert alice.get(f"{SERVICE}administration{path}").status == 403, path
    answer = storm.site.request(
        "GET", f"{SERVICE}api/v1/standing", headers={"Authorization": f"token {storm.tokens['alice']}"}
    )
    assert answer.status == 200, answer
    accounts = {each["name"]: each["balance"] for each in answer.body["accounts"]}
    assert set(accounts) == {"physics", "teaching"}
    for name, balance in accounts.items():
        mine = storm.number("select sum(amount) from ledger where account = :name", name=name)
        assert balance["limit"] - balance["used"] - balance["held"] == mine, (name, balance)


def copied(person: Person) -> Person:
    """Return the same browser in another window, so that the service's cookies do not reach the hub's form."""
    other = Person(person.hub, person.user)
    other.cookies = dict(person.cookies)
    return other
