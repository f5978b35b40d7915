"""Fifty sessions are in use, and their people click, while the hub becomes one of this release: no request is lost."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rig.hub import Answer, Hub, wait_for
from rig.upgraded_site import EarlierDemo, PatientDemo, UpgradedSite, command, upgraded_site

pytestmark = pytest.mark.nightly
USERS = ("alice", "bob", "tina", "ada")
#: Each user's default server and so many with a name: 52 sessions.
NAMED = 12
#: Small ones: all fifty are to fit on this machine.
SMALL = {"profile": "cpu", "cpus": 1, "memory_gib": 1}
#: What a browser or a client does by itself: again, after a second.
TRIES = 5
FOREVER = 240.0


class ManyDemo(PatientDemo):
    own_settings = f"c.JupyterHub.named_server_limit_per_user = {NAMED}\n"


class EarlierManyDemo(EarlierDemo):
    own_settings = ManyDemo.own_settings


@dataclass
class Clicks:
    """What people request, and what they get."""

    hub: Hub
    sessions: list[tuple[str, str]]
    answered: int = 0
    again: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def during(self, workers: int = 8) -> Iterator[None]:
        """Request until the block ends; each worker has a part of the sessions."""
        with ThreadPoolExecutor(workers) as pool:
            parts = [pool.submit(self._work, self.sessions[at::workers]) for at in range(workers)]
            try:
                yield
            finally:
                self._ended.set()
            for part in parts:
                part.result()

    def _work(self, sessions: list[tuple[str, str]]) -> None:
        while not self._ended.is_set():
            for user, name in sessions:
                self._request("session", lambda user=user, name=name: self._status(user, name))  # type: ignore[misc]
                self._ended.wait(0.1)
            self._request("hub", lambda: self.hub.api("GET", f"/users/{sessions[0][0]}", timeout=FOREVER))
            self._request("page", lambda: self.hub.request("GET", "/hub/login", timeout=FOREVER))

    def _status(self, user: str, name: str) -> Answer:
        return self.hub.server_api("GET", user, name, "/api/status")

    def _request(self, kind: str, send: object) -> None:
        assert callable(send)
        seen = []
        for attempt in range(TRIES):
            began = time.monotonic()
            try:
                answer = send()
                seen.append(str(answer.status))
            except (OSError, http.client.HTTPException) as error:
                seen.append(type(error).__name__)
            with self._lock:
                self.longest[kind] = max(self.longest.get(kind, 0), time.monotonic() - began)
                if seen[-1] == "200":
                    self.answered += 1
                    return
                self.again[f"{kind} {seen[-1]}"] += 1
            if attempt < TRIES - 1:
                time.sleep(1)
        with self._lock:
            self.failed.append(f"{kind}: {', '.join(seen)}")


@pytest.fixture
def site(hub: Hub, tmp_path: Path) -> Iterator[UpgradedSite]:
    with upgraded_site(hub, "0.2.0", tmp_path, (EarlierManyDemo, ManyDemo)) as found:
        yield found


def start_all(hub: Hub) -> list[tuple[str, str]]:
    """Start the sessions, a few at a time, and wait for them."""
    names = ["", *(f"s{number}" for number in range(1, NAMED + 1))]
    sessions = [(user, name) for name in names for user in USERS]
    for user in USERS:
        hub.ensure_user(user)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: hub.start_server(*each, 240, **SMALL), sessions))
    return sessions


def test_fifty_sessions_and_their_people_go_through_an_upgrade_without_a_lost_request(site: UpgradedSite) -> None:
    old, new = site.old, site.new
    began = time.monotonic()
    sessions = start_all(old)
    print(f"\n{len(sessions)} sessions started in {time.monotonic() - began:.0f} s")
    jobs, rows = {row["id"] for row in new.jobs()}, site.sessions()
    assert len(jobs) == len(sessions) == len(rows)
    kernel = old.new_kernel("bob", "s7")
    assert old.run_cell("bob", kernel, "mark = 6 * 7", "s7") == ""

    # The proxy of 0.2.0 holds nothing while the hub is away. It is replaced beside the old hub, before people are
    # counted: an upgrade from this release on leaves the proxy alone.
    site.processes.stop("proxy")
    new.demo._start_proxy()
    wait_for(lambda: all(answers(new, *each) for each in sessions), 120, "the old hub to set its routes again")

    clicks = Clicks(new, sessions)
    with clicks.during():
        time.sleep(3)
        away = time.monotonic()
        site.processes.stop("hub", within=20)
        for words in (("db", "backup"), ("db", "upgrade")):
            done = command(new, *words)
            assert done.returncode == 0, done.stdout + done.stderr
        new.start()
        gone = time.monotonic() - away
        time.sleep(10)
    longest = {kind: round(seconds, 1) for kind, seconds in clicks.longest.items()}
    print(
        json.dumps(
            {
                "sessions": len(sessions),
                "hub_away_s": round(gone, 1),
                "answered": clicks.answered,
                "sent_again": dict(clicks.again),
                "failed": len(clicks.failed),
                "longest_s": longest,
            }
        )
    )
    assert clicks.answered > 10 * len(sessions)
    assert not clicks.failed, clicks.failed[:10]
    assert longest["session"] < gone, "who works in a session does not wait for the hub"

    for user, name in sessions:
        assert new.wait_server(user, name)["ready"]
    assert {row["id"] for row in new.jobs()} == jobs
    assert site.sessions() == rows
    assert new.run_cell("bob", kernel, "print(mark)", "s7").strip() == "42"
    new.stop_all(240)
    wait_for(lambda: not new.jobs(), 120, "the jobs to end")
    new.wait_settled(240)
    checked = command(new, "db", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def answers(hub: Hub, user: str, name: str) -> bool:
    try:
        return hub.server_api("GET", user, name, "/api/status").status == 200
    except OSError:
        return False
