"""Base class of the calendar's commands: requests to the reservations service, and bookings as text.

The commands hold no rule: the service decides what may be booked, moved or cancelled, by the same use cases as its
pages.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from traitlets import Unicode

from carme_hub.cli.base import UsageError, new_key, table
from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable
from carme_hub.cli.hub_command import HubTask
from carme_hub.domain.wording import gpu_hours
from carme_hub.errors import CarmeError, Refused

from .times import local_zone, moment, read_length, read_time, read_zone, span

SERVICE = "reservations"
#: A session's environment has it where the site sets ``JupyterHub.public_url``.
PUBLIC_HUB_URL_VARIABLE = "JUPYTERHUB_PUBLIC_HUB_URL"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Start and end of a period.
Times = tuple[datetime, datetime]
#: What a user whose token lacks the scope can do.
_SCOPE_HINT = "If you may have it, /hub/token makes a token with it; else ask an administrator to do it."
#: The text of states whose name is not clear enough.
_STATES = {"pending": "waits for approval", "released": "given back"}
#: States in which a booking's problem no longer matters.
_FINAL_STATES = frozenset({"cancelled", "released", "ended"})


class CalendarTask(HubTask):
    """A command that uses the reservations service."""

    zone = Unicode(
        "",
        help="""The IANA zone of the times that you write and read, such as Europe/Berlin. The default is this machine's
        (TZ).""",
    ).tag(config=True)
    aliases: Any = {**HubTask.aliases, "zone": "CalendarTask.zone"}
    _client: HubClient

    def address(self) -> str:
        """Return the hub's public address: a session's JUPYTERHUB_API_URL is internal, where no service answers."""
        return self.hub or os.environ.get(PUBLIC_HUB_URL_VARIABLE, "") or super().address()

    async def work(self) -> int:
        """Open the service and do the task; with ``--json`` print a refusal's whole body."""
        async with HubClient(self.address(), self.token(), self.ca, service=SERVICE) as self._client:
            try:
                return await self.task()
            except HubRefused as error:
                if error.status == 401:
                    raise CarmeError("the hub does not take the token; its page /hub/token makes a new one") from error
                if not self.as_json:
                    if error.reason == "forbidden":
                        raise Refused(f"{error.message} {_SCOPE_HINT}", reason=error.reason) from error
                    raise
                self.print_json(error.answer)
                self.note(f"{self.name}: {error.message}")
                return 1

    async def task(self) -> int:
        """Do the task and return the exit status."""
        raise NotImplementedError

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(
        self, method: str, path: str, body: object = None, *, key: str = "", query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Return the document with which the service answers."""
        address = "/" + path + ("?" + urlencode(query) if query else "")
        headers = None if method == "GET" else {"Idempotency-Key": new_key(key)}
        _, found = await self.with_progress("asking the calendar", self._client.request(method, address, body, headers))
        if not isinstance(found, dict):
            raise HubUnreachable(f"{self._client.api} does not answer as a calendar does")
        return found

    async def booking(self, id: str) -> dict[str, Any]:
        """Return one booking."""
        return await self.request("GET", booking_path(id))

    # -- times --------------------------------------------------------------------------------------------------------

    @cached_property
    def time_zone(self) -> ZoneInfo:
        """The time zone of the input and the output."""
        name = self.zone or local_zone()
        if not name:
            self.note("This machine has no time zone set, so times are UTC. Set yours with --zone Europe/Berlin.")
        return read_zone(name or "UTC")

    def times(self, begin: str, end: str, length: str) -> Times:
        """Return start and end, from a start and either an end or a length."""
        if not begin or bool(end) == bool(length):
            raise UsageError("give the start with --from, and either the end with --to or the length with --length")
        now = time.time()
        first = read_time(begin, self.time_zone, now)
        return self.check_order(
            first, read_time(end, self.time_zone, now, after=first) if end else first + read_length(length)
        )

    def check_order(self, first: datetime, last: datetime) -> Times:
        """Return both times; refuse an end that is not after the start."""
        if moment(last, self.time_zone) <= moment(first, self.time_zone):
            raise UsageError('the end is before the start; give its day too, as in --to "2026-12-02 01:00"')
        return first, last

    def epoch_range(self, begin: str, end: str, usual: timedelta) -> tuple[int, int]:
        """Return start and end of a listing in epoch seconds; the default is from now on for the usual time."""
        now = time.time() // 60 * 60  # whole minutes are easier to read, and nothing is missed by them
        first = read_time(begin or "now", self.time_zone, now)
        last = read_time(end, self.time_zone, now, after=first) if end else first + usual
        first, last = self.check_order(first, last)
        return moment(first, self.time_zone), moment(last, self.time_zone)

    def command_with(self, changes: Mapping[str, str], *flags: str) -> str:
        """Return the command line with these options in place of the given ones; "" leaves an option out."""
        options: dict[str, str] = {}
        for name, target in self.aliases.items():
            trait = target.rpartition(".")[2]
            value = getattr(self, trait)
            options[name] = "" if value == self.traits()[trait].default_value else str(value)
        said = [word for name, value in (options | dict(changes)).items() if value for word in (f"--{name}", value)]
        return shlex.join([*self.name.split(), *self.extra_args, *said, *flags])

    # -- text ---------------------------------------------------------------------------------------------------------

    def period_text(self, found: Mapping[str, Any]) -> str:
        """Return the time of a booking or a conflict as text."""
        return span(found["start"], found["end"], self.time_zone)

    def bookings_table(self, bookings: Sequence[Mapping[str, Any]], *, owners: bool = False) -> str:
        """Return bookings as a table, and their problems below it."""
        headers = [f"when ({self.time_zone.key})", "GPUs", "title", "state", "account", "id"]
        rows = [
            [self.period_text(one), gpus(one), title_text(one), state_text(one), one["account"], one["id"]]
            for one in bookings
        ]
        if owners:
            headers.insert(2, "owner")
            for row, one in zip(rows, bookings, strict=True):
                row.insert(2, one["owner"])
        broken = (one for one in bookings if one["problem"] and one["state"] not in _FINAL_STATES)
        problems = [f"{title_text(one)}, {self.period_text(one)}: {one['problem']}" for one in broken]
        return "\n".join([table(headers, rows), *problems])

    def print_bookings(self, found: Mapping[str, Any], what: str) -> int:
        """Print the bookings of an answer."""
        if self.as_json:
            self.print_json(found)
        else:
            print(f"{what}\n{self.bookings_table(found['bookings'])}")
        return 0


def booking_path(id: str, verb: str = "") -> str:
    """Return the path of one booking, or of an action on it; raise ``UsageError`` for an invalid id."""
    if not _ID.fullmatch(id):
        raise UsageError(f"{id!r} is not the id of a booking; `carme-hub reservations list` shows the ids")
    return f"bookings/{id}" + (f"/{verb}" if verb else "")


def gpus(booking: Mapping[str, Any]) -> str:
    """Return "8 a100", "4 × 1 a100" for seats, or "2 whole a100 nodes"; for a hidden booking, all its GPUs by type."""
    kind, seats, count = booking["gpu_type"], booking["seats"], booking["gpus"]
    if booking["kind"] == "maintenance":
        nodes = len({place["node"] for place in booking["places"]})
        return f"{nodes} whole node{'' if nodes == 1 else 's'}"
    if booking["hidden"]:
        taken = booking["by_type"] or {kind: booking["total"]}
        return " and ".join(counted(number, each) for each, number in taken.items())
    if not count:
        return f"{seats} whole {kind} node{'' if seats == 1 else 's'}"
    return f"{seats} × {count} {kind}" if seats > 1 else counted(count, kind)


def counted(count: int, kind: str) -> str:
    """Return "8 a100", and "7 × 1g.10gb", since two adjacent numbers would be read as one."""
    return f"{count} × {kind}" if kind[:1].isdigit() else f"{count} {kind}"


def title_text(booking: Mapping[str, Any]) -> str:
    """Return the title; "(somebody's)" where it is hidden from this user."""
    return str(booking["title"]) or "(somebody's)"


def state_text(booking: Mapping[str, Any]) -> str:
    """Return the state as text."""
    return "waitlist" if booking["waits"] else _STATES.get(booking["state"], str(booking["state"]))


def hold_text(amount: int | None) -> str:
    """Return a sentence with the GPU time that is held, "" for none."""
    return f"It holds {gpu_hours(amount)} of GPU time." if amount else ""
