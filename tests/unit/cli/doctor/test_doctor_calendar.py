"""The doctor on the calendar: what keeps bookings from Slurm is named, and what cannot be found out is no verdict."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from carme_hub.booking.settings import CarmeReservations
from carme_hub.cli.doctor import calendar
from carme_hub.cli.doctor.calendar import CalendarFacts, check, check_site
from carme_hub.cli.doctor.findings import Level
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

NOW = 1_795_000_000
HEALTHY = {"keeping": True, "age": 7, "equal": True}
ID = "0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"
OURS, ORPHAN = "carme-0f3a9d4c5b6e4f80-0", "carme-ffffffffffffffff-0"


def there(*names: str, end: int = NOW + 60) -> tuple[SlurmReservation, ...]:
    return tuple(SlurmReservation(name, Period(NOW - 60, end), frozenset({"n1"})) for name in names)


def found(keep: str = "auto", **changes: Any) -> list[tuple[Level, str, str]]:
    known: dict[str, Any] = {
        **{"reserves_gpus": True, "user": "carme-hub", "level": "operator", "slurm_user": "slurm", "health": HEALTHY},
        **{"reservations": there(OURS, "root_1"), "stems": {"carme-0f3a9d4c5b6e4f80"}, **changes},
    }
    settings = CarmeReservations(enabled=True, keep=keep)
    return [(each.level, each.setting, each.value) for each in check(settings, CalendarFacts(**known), NOW)]


def test_a_calendar_that_is_kept_has_nothing_to_mend() -> None:
    assert found() == []
    assert found("nodes", reserves_gpus=False) == found("auto", reserves_gpus=False) == []
    assert found(reservations=()) == []


def test_what_this_slurm_cannot_keep_is_named() -> None:
    assert found("gpus", reserves_gpus=False) == [(Level.UNSAFE, "CarmeReservations.keep", "gpus")]
    assert found("gpus", reserves_gpus=None) == [(Level.UNKNOWN, "CarmeReservations.keep", "")]
    assert found("nodes", reserves_gpus=None) == []


@pytest.mark.parametrize(
    ("user", "level", "verdict"),
    [
        ("carme-hub", "none", (Level.UNSAFE, "AdminLevel", "carme-hub: none")),
        ("carme-hub", None, (Level.UNKNOWN, "AdminLevel", "")),
        ("carme-hub", "administrator", None),
        ("slurm", "none", None),
        ("root", None, None),
    ],
)
def test_who_may_make_no_reservations_is_named(user: str, level: str | None, verdict: object) -> None:
    assert found(user=user, level=level) == ([verdict] if verdict else [])


def test_reservations_that_no_booking_knows_are_named_and_others_left_alone() -> None:
    assert found(reservations=there(OURS, ORPHAN, "root_1")) == [(Level.ADVICE, "Slurm's reservations", ORPHAN)]
    assert found(reservations=there(ORPHAN, end=NOW - 1)) == [], "it is over"
    for silent in ("reservations", "stems"):
        assert found(**{silent: None}) == [(Level.UNKNOWN, "Slurm's reservations", "")]


@pytest.mark.parametrize(
    ("health", "level", "value"),
    [
        ({**HEALTHY, "equal": False}, Level.ADVICE, "not equal"),
        ({"keeping": False, "age": 600, "equal": True}, Level.UNSAFE, "not keeping"),
        ({"keeping": False, "age": None, "equal": False}, Level.UNSAFE, "not keeping"),
        (None, Level.UNKNOWN, ""),
    ],
)
def test_a_service_that_does_not_keep_it_is_named(health: object, level: Level, value: str) -> None:
    assert found(health=health) == [(level, "the calendar's service", value)]


# -- reading -----------------------------------------------------------------------------------------------------------


@contextmanager
def proxy(status: int, body: object) -> Iterator[tuple[int, list[str]]]:
    """Answer as the hub's proxy does; yield its port and the paths that were asked."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        server.server_close()


def site(folder: Path, port: int, *, level: str = "Operator", release: str = "24.11.5") -> Config:
    """Return the settings of a site whose Slurm is a few scripts."""
    (folder / "bin").mkdir()
    times = f"StartTime={NOW} EndTime={2**31}"
    rest = "Nodes=n1 TRES=cpu=4,gres/gpu:a100=2 Users=tina Accounts=teaching Flags=SPEC_NODES State=ACTIVE"
    lines = "\n".join(f"ReservationName={name} {times} {rest}" for name in (OURS, ORPHAN))
    (folder / "reservation").write_text(lines)
    (folder / "config").write_text("SlurmUser               = slurm(64030)\n")
    scripts = {
        "scontrol": f'[ "$1" = --version ] && exec echo slurm-wlm {release}\nexec cat {folder}/$2',
        "sacctmgr": f"echo {level}" if level else "echo 'sacctmgr: error: no slurmdbd' >&2",
    }
    for name, body in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    config = Config()
    config.CarmeReservations.enabled = True
    config.CarmeSlurm.slurm_prefix = str(folder)
    config.CarmeSlurm.cluster = "lab"
    config.CarmeStore.url = f"sqlite:///{folder / 'carme.sqlite'}"
    config.JupyterHub.bind_url = f"http://:{port}/lab/"
    return config


def booked(config: Config) -> None:
    engine = CarmeStore(config=config).open()
    place = Place("n1", "a100", 2, 2)
    known = ("lab", "tina", "teaching", "Class", Need("a100", 1, 2), Period(NOW, 2**31), (place,), State.ACTIVE, 0.0)
    with ReservationStore(LedgerStore(engine)).transaction("lab") as writes:
        writes.add([Reservation(ID, *known)])
    engine.dispose()


def names(config: Config) -> set[tuple[Level, str]]:
    return {(each.level, each.setting) for each in check_site(config)}


def test_slurm_database_and_service_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar.os, "geteuid", lambda: 1)
    orphans = (Level.ADVICE, "Slurm's reservations")
    with proxy(200, HEALTHY) as (port, asked):
        config = site(tmp_path, port)
        booked(config)
        assert names(config) == {orphans}
        assert asked == ["/lab/services/reservations/api/v1/health"]
        config.CarmeReservations.enabled = False
        assert names(config) == set()


def test_whatever_is_silent_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar.os, "geteuid", lambda: 1)
    with proxy(503, {"error": "not-ready", "message": "The service is starting."}) as (port, _):
        config = site(tmp_path, port, level="")
        found = {each.setting: each for each in check_site(config)}
    assert {each.level for each in found.values()} == {Level.UNKNOWN}
    assert set(found) == {"AdminLevel", "Slurm's reservations", "the calendar's service"}
    assert "no slurmdbd" in found["AdminLevel"].why
    assert "There is no database" in found["Slurm's reservations"].why
    assert "status 503 The service is starting." in found["the calendar's service"].why
    assert not (tmp_path / "carme.sqlite").exists(), "a doctor makes nothing"
