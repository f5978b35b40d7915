"""``carme-hub slo``: the report of a month from the database, and its exit status."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from carme_hub.cli.app import CarmeHubApp
from carme_hub.cli.base import UsageError
from carme_hub.cli.slo import SloApp, month_of
from carme_hub.domain.sessions.end_cause import CONTROLLER_LOST
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

NOVEMBER = datetime(2026, 11, 10, 12).timestamp()  # noqa: DTZ001  the machine's time zone


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "jupyterhub_config.py"
    url = f"sqlite:///{tmp_path}/carme.sqlite"
    file.write_text(f"c.CarmeStore.url = {url!r}\nc.CarmeSlurm.cluster = 'lab'\n")
    store = CarmeStore(url=url)
    rows = SessionStore(store.open())
    for number, took in enumerate((2.0, 4.0, 6.0)):
        at = NOVEMBER + 100 * number
        session = Session(f"s{number}", "lab", "alice", "", Request("gpu", "base"), SessionState.RUNNING, at)
        rows.add(session.replace(started=at + took))
    return file


def lose_one(config: Path) -> None:
    rows = SessionStore(CarmeStore(url=f"sqlite:///{config.parent}/carme.sqlite").open())
    session = rows.get("s1")
    assert session is not None
    rows.save(session.replace(state=SessionState.ENDED, ended=NOVEMBER + 900, end_reason=CONTROLLER_LOST))


def run(config: Path, *argv: str) -> int:
    with pytest.raises(SystemExit) as end:
        CarmeHubApp.launch_instance(["slo", "--config", str(config), *argv])
    SloApp.clear_instance()
    CarmeHubApp.clear_instance()
    return int(end.value.code or 0)


def test_a_month_without_losses_is_told_and_the_status_is_0(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "--month", "2026-11") == 0
    lines = {line[:27].strip(): line[27:].strip() for line in capsys.readouterr().out.splitlines()}
    assert lines["starts"] == "3"
    assert lines["served"] == "3 (100 % of those that were not stopped)"
    assert (lines["time to the lab, median"], lines["time to the lab, 95 %"]) == ("4.0 s", "6.0 s")
    assert lines["sessions lost"] == "0"


def test_a_lost_session_is_named_and_the_status_is_1(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lose_one(config)
    assert run(config, "--month", "2026-11") == 1
    assert f"s1  alice  {CONTROLLER_LOST}" in capsys.readouterr().out
    assert run(config, "--month", "2026-11", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["month"], found["ended"]) == ("2026-11", {"lost": 1})
    assert [each["session"] for each in found["lost"]] == ["s1"]
    assert run(config, "--month", "2026-10") == 0


@pytest.mark.parametrize("month", ["November", "2026-13", "0000-01", "9999-12", "2026-10-15", "2026-10-01T00:00"])
def test_a_month_that_is_none_is_named(config: Path, capsys: pytest.CaptureFixture[str], month: str) -> None:
    assert run(config, "--month", month) == 2
    assert "write it as 2026-11" in capsys.readouterr().err


def test_without_a_database_nothing_is_made(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(f"c.CarmeStore.url = 'sqlite:///{config.parent}/none.sqlite'\n")
    assert run(config) == 2
    assert "There is no database" in capsys.readouterr().err
    assert not (config.parent / "none.sqlite").exists()


def test_december_ends_with_the_year_and_the_future_has_no_report() -> None:
    since, until, name = month_of("2025-12", NOVEMBER)
    assert (datetime.fromtimestamp(until).year, datetime.fromtimestamp(until).day) == (2026, 1)  # noqa: DTZ006
    assert (until - since, name) == (31 * 86_400, "2025-12")
    assert month_of("", NOVEMBER)[2] == "2026-11"
    with pytest.raises(UsageError):
        month_of("2026-12", NOVEMBER)


def test_a_month_in_which_the_clocks_change_has_its_hour_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        since, until, _ = month_of("2026-10", NOVEMBER)
    time.tzset()
    assert (since, until - since) == (1_790_805_600, 31 * 86_400 + 3600), "from midnight to midnight there"
