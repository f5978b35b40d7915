"""The calendar's interfaces for programs, through hub and proxy: the command line, and REST as in its document."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from rig.hub import Hub, wait_for
from rig.rest import EXPECTED, Rest, check_document, clear_calendar, wait_for_calendar

from carme_hub.sandbox.demo import DEFAULT_POLICY

ROOT = "/services/reservations/api/v1/"
COMMAND = Path(sys.executable).with_name("carme-hub")
CONFIG = f"""
hooks = "rules"
headers = {{ Authorization = "token ${{CARME_TEST_TOKEN}}" }}

[checks]
{EXPECTED}

[[operations]]
include-path = "/api/v1/feed/{{secret}}.ics"
# A new address of a feed ends the one before, which is what it is for.
checks.ensure_resource_availability.enabled = false
"""
#: Text of the letters of a rule is hardly ever one: parts that are, and what nobody follows.
HOOKS = """
import schemathesis
from hypothesis import strategies as st

NUMBERS = st.lists(st.integers(-2, 35).map(str), min_size=1, max_size=3).map(",".join)
DAYS = st.sampled_from(("MO", "TU,TH", "1MO", "-1FR", "99MO", "XX"))
PARTS = {"INTERVAL": NUMBERS, "BYDAY": DAYS, "BYMONTH": NUMBERS, "BYMONTHDAY": NUMBERS, "BYSETPOS": NUMBERS}
RULES = st.builds(
    lambda freq, parts, end: ";".join(["FREQ=" + freq, *("=".join(part) for part in parts.items()), end]),
    st.sampled_from(("DAILY", "WEEKLY", "MONTHLY", "YEARLY")),
    st.fixed_dictionaries({}, optional=PARTS),
    st.sampled_from(("COUNT=1", "COUNT=20", "UNTIL=20301231")),
)


@schemathesis.hook
def flatmap_case(context, case):
    asks = case.method == "POST" and case.path.endswith(("/check", "/bookings"))
    if not asks or case.meta is None or not case.meta.generation.mode.is_positive:
        return st.just(case)

    def ruled(rule):
        times = {"start": "2027-01-05T09:00", "end": "2027-01-05T11:00", "without": []}
        case.body = {**case.body, **times, "zone": "Europe/Berlin", "rule": rule, "account": "physics"}
        return case

    return RULES.map(ruled)
"""
ZONE = ZoneInfo("Europe/Berlin")
#: Bob's bookings on physics wait for an approval, alice's do not.
ASKS = {"id": "asks", "user": "bob", "booking": {"approval_above": 16}}


class Terminal:
    """``carme-hub reservations`` as users run it: a process, with the user's token in its environment."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.tokens = {user: Rest(hub, user, ROOT).token for user in ("alice", "bob", "ada")}

    def run(self, who: str, *argv: str, token: str = "", hub: str = "") -> tuple[int, str, str]:
        """Run a command; return its exit status, stdout and stderr."""
        environ = {
            **os.environ,
            "TZ": ZONE.key,
            "JUPYTERHUB_API_URL": hub or f"{self.hub.demo.url}/hub/api",
            "JUPYTERHUB_API_TOKEN": token or self.tokens[who],
        }
        environ.pop("JUPYTERHUB_PUBLIC_HUB_URL", None)
        words = [str(COMMAND), "reservations", *argv]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def done(self, who: str, *argv: str) -> str:
        """Run a command that must succeed; return its stdout."""
        code, output, besides = self.run(who, *argv)
        assert code == 0, (argv, output, besides)
        return output

    def refused(self, who: str, *argv: str, code: int = 1, **more: str) -> str:
        """Run a command that must be refused; return its stderr; stdout is empty."""
        found, output, besides = self.run(who, *argv, **more)
        assert (found, output) == (code, ""), (argv, output, besides)
        return besides

    def json(self, who: str, *argv: str) -> Any:
        return json.loads(self.run(who, *argv, "--json")[1])

    def book(self, who: str, title: str, at: datetime, length: str) -> str:
        """Book all a100; return the id of the booking."""
        words = ("book", title, "--type", "a100", "--gpus", "4", "--seats", "2", "--from", written(at))
        return str(self.json(who, *words, "--length", length)["bookings"][0]["id"])


def written(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="minutes")


def offered(text: str) -> list[tuple[str, list[str]]]:
    """Return the alternatives: the description, and the command after ``carme-hub reservations``."""
    lines = text.splitlines()
    return [(words.strip(), shlex.split(line)[2:]) for words, line in pairwise(lines) if line.startswith("    carme")]


@pytest.fixture(scope="module")
def terminal(site: Hub) -> Iterator[Terminal]:
    wait_for_calendar(site)
    clear_calendar(site)
    site.demo.set_policy({**DEFAULT_POLICY, "quotas": [*DEFAULT_POLICY["quotas"], ASKS]})  # type: ignore[misc]
    found = Terminal(site)
    yield found
    site.demo.set_policy(DEFAULT_POLICY)
    clear_calendar(site)


@pytest.fixture
def morning() -> datetime:
    """The day after tomorrow at ten, wall time."""
    return (datetime.now(ZONE) + timedelta(days=2)).replace(hour=10, minute=0, second=0, microsecond=0, tzinfo=None)


def test_a_booking_is_made_moved_and_cancelled_and_conflicts_offer_commands_that_work(
    terminal: Terminal, morning: datetime
) -> None:
    output = terminal.done("alice", "free", "--type", "a100")
    assert output.split()[-2:] == ["8", "8"], output
    output = terminal.done("alice", "list", "--state", "confirmed")
    assert output.startswith("You have booked nothing that is confirmed, "), output
    times = ("--from", written(morning), "--to", "12:00")
    output = terminal.done("alice", "book", "First steps", "--type", "a100", "--gpus", "4", "--seats", "2", *times)
    assert output.startswith("Booked. It holds 16 GPU-hours of GPU time.\n"), output
    assert f"{morning:%a %Y-%m-%d} 10:00 to 12:00" in output
    (mine,) = terminal.json("alice", "list", "--state", "confirmed")["bookings"]
    id = mine["id"]
    assert (mine["title"], mine["state"], mine["mine"]) == ("First steps", "confirmed", True)
    assert "move, cancel" in terminal.done("alice", "show", id)

    # Another user wants the same hour: the answer lists alternatives, each as a command to paste.
    same = ("book", "Mine", "--type", "a100", "--gpus", "4", "--from", written(morning), "--length", "1h")
    output = terminal.refused("bob", *same)
    assert "These GPUs are not free at that time. Nothing was booked." in output
    found = offered(output)
    assert found[-1][0] == "wait until it is free"
    assert "h100 then" in [words for words, _ in found]
    assert terminal.done("bob", *found[0][1]).startswith("Booked."), found[0]
    assert terminal.done("bob", *found[-1][1]).startswith("It is not free. It is on the waitlist")
    refusal = json.loads(terminal.run("bob", *same, "--json")[1])
    assert (refusal["error"], len(refusal["conflicts"])) == ("slot-taken", 1)

    # Another user's booking stays unchanged, and an impossible request is refused with a reason.
    assert "was booked by alice" in terminal.refused("bob", "cancel", id, "--yes")
    (taken,) = terminal.json("bob", "list", "--state", "confirmed")["bookings"]
    there = written(datetime.fromtimestamp(taken["start"], ZONE).replace(tzinfo=None))
    output = terminal.refused("alice", "move", id, "--from", there)
    assert "Nothing was changed" in output or "not free" in output
    assert offered(output)[0][1][:2] == ["move", id]
    later = morning + timedelta(days=1)
    output = terminal.done("alice", "move", id, "--from", written(later), "--title", "Second steps")
    assert f"{later:%a %Y-%m-%d} 10:00 to 12:00" in output
    assert "Second steps" in output
    assert terminal.done("alice", "cancel", id, "--yes").startswith("Cancelled.")
    assert "cannot be cancelled any more" in terminal.refused("alice", "cancel", id, "--yes")
    wait_for(lambda: not waits(terminal), 90, "what waited to be booked, now that it is free")


def waits(terminal: Terminal) -> bool:
    return any(each["waits"] for each in terminal.json("bob", "list")["bookings"])


def test_wrong_and_forbidden_commands_are_refused_with_their_exit_status(terminal: Terminal, morning: datetime) -> None:
    book = ("book", "x", "--type", "a100", "--from")
    assert "the end is before the start" in terminal.refused("bob", *book, "10:00", "--to", "9:00", code=2)
    for argv, words in (
        ((*book, "2020-01-01", "--length", "1h"), "would start in the past"),
        (("show", "0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"), "There is no such booking"),
        (("maintenance", "x", "--nodes", "node1", "--from", "12:00", "--length", "1h", "--yes"), "administrator"),
    ):
        assert words in terminal.refused("bob", *argv)
    reads = ["custom:carme:reservation:read", "access:services!service=reservations"]
    token = terminal.hub.api("POST", "/users/bob/tokens", {"scopes": reads}).body["token"]
    output = terminal.refused("bob", *book, written(morning), "--length", "1h", token=token)
    assert "custom:carme:reservation:write" in output
    assert "/hub/token" in terminal.refused("bob", "list", code=2, token="nobodys")
    assert "does not answer" in terminal.refused("bob", "list", code=2, hub="http://127.0.0.1:9/hub/api")


def test_an_administrator_approves_denies_and_sets_maintenance(terminal: Terminal, morning: datetime) -> None:
    day = morning + timedelta(days=7)
    large = terminal.book("bob", "Large", day, "3h")
    other = terminal.book("bob", "Larger", day + timedelta(days=1), "4h")
    output = terminal.done("ada", "list", "--pending")
    assert output.count("waits for approval") == 2
    assert large in output
    assert other in output
    assert "administrator" in terminal.refused("bob", "approve", large)
    assert terminal.done("ada", "approve", large).startswith("Approved.")
    assert terminal.done("ada", "deny", other, "--reason", "Two nodes are enough", "--yes").startswith("Denied.")
    assert "Two nodes are enough" in terminal.done("bob", "show", other)

    window = ("maintenance", "Drivers", "--nodes", "node[1-2]", "--from", written(day), "--length", "2h")
    assert "It overlaps 1 booking, whose owner is notified. Keep" in terminal.refused("ada", *window, code=2)
    output = terminal.done("ada", *window, "--yes")
    assert "2 whole nodes" in output
    assert "Large" in output.partition("Bookings that it changes:")[2]
    kept = terminal.json("ada", "list", "--all", "--from", written(day), "--to", written(day + timedelta(hours=1)))
    (drivers,) = (each["id"] for each in kept["bookings"] if each["kind"] == "maintenance")
    assert terminal.done("ada", "cancel", drivers, "--yes").startswith("Cancelled.")


def test_a_booking_that_has_begun_is_released(terminal: Terminal) -> None:
    begun = terminal.json("alice", "book", "Now", "--type", "h100", "--from", "now", "--length", "1h")["bookings"][0]
    assert begun["start"] <= time.time() < begun["end"]
    wait_for(lambda: terminal.json("alice", "show", begun["id"])["state"] == "active", 90, "it to have begun")
    output = terminal.done("alice", "release", begun["id"], "--reason", "done", "--yes")
    assert output.startswith("Given back.")
    assert terminal.json("alice", "show", begun["id"])["reason"] == "done"


#: All of the document for a while, and then rules of what comes again for another: check books nothing.
ALL = ("--max-examples", "5")
ASKED = ("--max-examples", "100", "--phases", "fuzzing", "--include-path-regex", "/check$")


@pytest.mark.parametrize("part", [ALL, ASKED], ids=["all", "asked"])
def test_the_document_and_the_service_agree(site: Hub, tmp_path: Path, part: tuple[str, ...]) -> None:
    wait_for_calendar(site)
    (tmp_path / "rules.py").write_text(HOOKS)
    check_document(Rest(site, "ada", ROOT), tmp_path, CONFIG, *part)
