"""``carme-hub reservations move | cancel | release | approve | deny | maintenance``: change what is booked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from traitlets import Enum, Integer, Unicode

from carme_hub.cli.base import YES_FLAG, UsageError, positional_arguments
from carme_hub.cli.hub_client import HubRefused
from carme_hub.domain.cluster.tres import hosts_of

from .alternatives import alternatives_text
from .service_client import CalendarTask, booking_path, title_text
from .times import moment, read_length, read_time, rest_time

_SERIES = ("one", "later", "all")
_WHICH = "Of one that comes again: this time alone (one, the default), this and the later ones (later), or all."


class MoveApp(CalendarTask):
    """Move a booking, or change its size or title."""

    name = "carme-hub reservations move"
    description = """Move a booking, or change its GPUs, seats or title: carme-hub reservations move ID --from … . With
    --from alone it keeps its length. It moves as a whole or stays unchanged."""
    examples = 'carme-hub reservations move 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071 --from "thu 18:00" --length 2h'

    begin = Unicode("", help="The new start.").tag(config=True)
    end = Unicode("", help="The new end; a time without a day is on the day of the start.").tag(config=True)
    length = Unicode("", help="The new length, such as 2h, in place of --to.").tag(config=True)
    gpu_type = Unicode("", help="Other GPUs, such as a100.").tag(config=True)
    gpus = Integer(None, allow_none=True, min=0, help="GPUs of one seat; 0 is a whole node.").tag(config=True)
    seats = Integer(None, allow_none=True, min=1, help="For how many sessions at once.").tag(config=True)
    title = Unicode("", help="The new title.").tag(config=True)
    series = Enum(_SERIES, default_value="one", help=_WHICH).tag(config=True)
    aliases: Any = {
        "from": "MoveApp.begin",
        "to": "MoveApp.end",
        "length": "MoveApp.length",
        "type": "MoveApp.gpu_type",
        "gpus": "MoveApp.gpus",
        "seats": "MoveApp.seats",
        "title": "MoveApp.title",
        "series": "MoveApp.series",
        **CalendarTask.aliases,
    }

    async def task(self) -> int:
        """Move it."""
        (id,) = positional_arguments(self, "ID")
        before = await self.booking(id)
        changes = self._changes(before)
        if not changes:
            raise UsageError("give what to change: --from, --to, --length, --type, --gpus, --seats or --title")
        body = {**changes, "version": before["version"], "series": self.series}
        try:
            found = await self.request("PATCH", booking_path(id), body)
        except HubRefused as error:
            if self.as_json or not error.answer.get("conflicts"):
                raise
            self.note(f"{self.name}: {error.message}")
            self.note(
                alternatives_text(
                    error.answer["conflicts"], self.time_zone, self.command_with, once=self.series == "one"
                )
            )
            return 1
        return self.print_bookings(found, "Changed.")

    def _changes(self, before: Mapping[str, Any]) -> dict[str, Any]:
        new_values = {"gpu_type": self.gpu_type, "gpus": self.gpus, "seats": self.seats, "title": self.title}
        return {
            **self._period(before),
            **{name: value for name, value in new_values.items() if value not in ("", None)},
        }

    def _period(self, before: Mapping[str, Any]) -> dict[str, int]:
        """Return the new start and end, {} where neither changes."""
        if self.end and self.length:
            raise UsageError("give the end with --to, or the length with --length, not both")
        if not (self.begin or self.end or self.length):
            return {}
        now, (start, end) = time.time(), (before["start"], before["end"])
        first = (
            read_time(self.begin, self.time_zone, now) if self.begin else datetime.fromtimestamp(start, self.time_zone)
        )
        if self.end:
            last = read_time(self.end, self.time_zone, now, after=first)
        else:
            last = first + (read_length(self.length) if self.length else timedelta(seconds=end - start))
        first, last = self.check_order(first, last)
        return {"start": moment(first, self.time_zone), "end": moment(last, self.time_zone)}


class _BookingActionTask(CalendarTask):
    """A command that cancels, releases, approves or denies a booking."""

    reason = Unicode("", help="Why; the users concerned are notified of it.").tag(config=True)
    aliases: Any = {"reason": "_BookingActionTask.reason", **CalendarTask.aliases}
    flags: Any = {**CalendarTask.flags, **YES_FLAG}

    async def end(self, verb: str, question: str, done: str, **more: str) -> int:
        """Ask for confirmation, change the booking that the command line names, and print its new state.

        Args:
            question: the question, with ``{}`` for the booking; "" asks nothing.
        """
        (id,) = positional_arguments(self, "ID")
        if question and not self.yes:
            one = await self.booking(id)
            self.confirm(question.format(f"“{title_text(one)}”, {self.period_text(one)} ({self.time_zone.key})"))
        body = {**more, "reason": self.reason.strip()}
        return self.print_bookings(await self.request("POST", booking_path(id, verb), body), done)


class CancelApp(_BookingActionTask):
    """Cancel a booking."""

    name = "carme-hub reservations cancel"
    description = """Cancel a booking: carme-hub reservations cancel ID. The GPU time that it holds comes back, and its
    GPUs are free for others; after its start, that applies to the rest."""
    examples = "carme-hub reservations cancel 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071 --series later"

    series = Enum(_SERIES, default_value="one", help=_WHICH).tag(config=True)
    aliases: Any = {**_BookingActionTask.aliases, "series": "CancelApp.series"}

    async def task(self) -> int:
        """Cancel it."""
        which = {"one": "", "later": " and all later times of it", "all": " and all other times of it"}[self.series]
        return await self.end("cancel", f"Cancel {{}}{which}?", "Cancelled.", series=self.series)


class ReleaseApp(_BookingActionTask):
    """Give back what is left of a booking."""

    name = "carme-hub reservations release"
    description = """Give back what is left of a booking that has begun: carme-hub reservations release ID. The GPU time
    that it holds for the rest comes back, and its GPUs are free for others at once."""
    examples = "carme-hub reservations release 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"

    async def task(self) -> int:
        """Give it back."""
        return await self.end("release", "Give back the rest of {}?", "Given back.")


class ApproveApp(_BookingActionTask):
    """Approve a booking."""

    name = "carme-hub reservations approve"
    description = """Approve a booking that waits for approval, with all its times: carme-hub reservations approve ID.
    `carme-hub reservations list --pending` lists them."""
    examples = "carme-hub reservations approve 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"
    flags: Any = CalendarTask.flags  # an approval loses nothing, so it needs no confirmation

    async def task(self) -> int:
        """Approve it."""
        return await self.end("decision", "", "Approved.", decision="approve")


class DenyApp(_BookingActionTask):
    """Deny a booking."""

    name = "carme-hub reservations deny"
    description = 'Deny a booking that waits, with all its times: carme-hub reservations deny ID --reason "…".'
    examples = 'carme-hub reservations deny 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071 --reason "Two nodes are enough"'

    async def task(self) -> int:
        """Deny it."""
        if not self.reason.strip():
            raise UsageError("give a reason with --reason: the requester reads it")
        return await self.end("decision", "Deny {} and all its times?", "Denied.", decision="deny")


class MaintenanceApp(CalendarTask):
    """Set a maintenance window."""

    name = "carme-hub reservations maintenance"
    description = """Keep nodes free of everybody's jobs for a time: carme-hub reservations maintenance TITLE --nodes
    node[1-4] --from … --to …. It may overlap bookings, whose owners are notified; `cancel` and `release` end it."""
    examples = 'carme-hub reservations maintenance "New drivers" --nodes node[1-4] --from "tomorrow 8:00" --to 12:00'

    nodes = Unicode("", help="The nodes, as Slurm writes them: node1,node3 or node[1-4]. Required.").tag(config=True)
    begin = Unicode("", help="The start. Required.").tag(config=True)
    end = Unicode("", help="The end; a time without a day is on the day of the start.").tag(config=True)
    length = Unicode("", help="The length, such as 4h, in place of --to.").tag(config=True)
    aliases: Any = {
        "nodes": "MaintenanceApp.nodes",
        "from": "MaintenanceApp.begin",
        "to": "MaintenanceApp.end",
        "length": "MaintenanceApp.length",
        **CalendarTask.aliases,
    }
    flags: Any = {**CalendarTask.flags, **YES_FLAG}

    async def task(self) -> int:
        """Set it, after a confirmation that names how many bookings it overlaps."""
        (title,) = positional_arguments(self, "TITLE")
        nodes = self._nodes()
        first, last = self.times(self.begin, self.end, self.length)
        start, end = moment(first, self.time_zone), moment(last, self.time_zone)
        if not self.yes:
            there = await self._count_bookings(nodes, start, end)
            whose = "1 booking, whose owner is" if there == 1 else f"{there} bookings, whose owners are"
            over = f"It overlaps {whose} notified. " if there else ""
            self.confirm(
                f"{over}Keep {', '.join(nodes)} free of jobs, {self.period_text({'start': start, 'end': end})}?"
            )
        body = {
            "nodes": nodes,
            "start": rest_time(first),
            "end": rest_time(last),
            "zone": self.time_zone.key,
            "title": title,
        }
        found = await self.request("POST", "maintenance", body)
        if self.as_json:
            self.print_json(found)
            return 0
        print("Set.\n" + self.bookings_table([found["maintenance"]]))
        if found["changed"]:
            print("\nBookings that it changes:\n" + self.bookings_table(found["changed"], owners=True))
        return 0

    def _nodes(self) -> list[str]:
        try:
            names = list(hosts_of(self.nodes))
        except ValueError as error:
            raise UsageError(f"{self.nodes!r} names no nodes: {error}") from error
        if not names:
            raise UsageError("name the nodes with --nodes, such as node[1-4]")
        return names

    async def _count_bookings(self, nodes: Sequence[str], start: int, end: int) -> int:
        """Return how many bookings have GPUs of these nodes at that time."""
        found = await self.request("GET", "bookings", query={"from": start, "to": end})
        mine = (one for one in found["bookings"] if one["kind"] == "booking")
        return sum(any(place["node"] in nodes for place in one["places"]) for one in mine)
