"""``carme-hub reservations list | free | show``: what is booked, and what is free."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from traitlets import Bool, Enum, Unicode

from carme_hub.cli.base import positional_arguments, table
from carme_hub.domain.wording import gpu_hours

from .service_client import CalendarTask, gpus, state_text, title_text

_STATES = ("", "draft", "pending", "confirmed", "active", "ended", "cancelled", "released")
#: Default lengths of listings: a year of one's own bookings, a month of everybody's, a day of free GPUs.
_MINE, _ALL, _FREE = timedelta(days=366), timedelta(days=31), timedelta(days=1)


class ListApp(CalendarTask):
    """List bookings."""

    name = "carme-hub reservations list"
    description = """List your bookings and those to which you are invited, from now on; with --all everybody's bookings
    that take GPUs, with the details that you may see."""
    examples = "carme-hub reservations list --json\ncarme-hub reservations list --pending"

    begin = Unicode("", help="The start of the listing. The default is now.").tag(config=True)
    end = Unicode("", help="Its end. The default is in a year; with --all in 31 days.").tag(config=True)
    state = Enum(
        _STATES,
        default_value="",
        help="Only bookings in this state: draft, pending, confirmed, active, ended, cancelled or released.",
    ).tag(config=True)
    everybodys = Bool(False, help="List everybody's bookings.").tag(config=True)
    pending = Bool(False, help="List all bookings that wait for approval.").tag(config=True)
    aliases: Any = {
        **CalendarTask.aliases,
        "from": "ListApp.begin",
        "to": "ListApp.end",
        "state": "ListApp.state",
    }
    flags: Any = {
        **CalendarTask.flags,
        "all": ({"ListApp": {"everybodys": True}}, "List everybody's bookings."),
        "pending": (
            {"ListApp": {"pending": True, "everybodys": True, "state": "pending"}},
            "List all bookings that wait for approval.",
        ),
    }

    async def task(self) -> int:
        """List them."""
        positional_arguments(self)
        usual = _MINE if self.pending or not self.everybodys else _ALL
        start, end = self.epoch_range(self.begin, self.end, usual)
        query = {"from": start, "to": end, "mine": "false" if self.everybodys else "true"}
        found = await self.request("GET", "bookings", query={**query, **({"state": self.state} if self.state else {})})
        if self.as_json:
            self.print_json(found)
        elif not found["bookings"]:
            whose = "Nothing is booked" if self.everybodys else "You have booked nothing"
            which = f" that is {self.state}" if self.state else ""
            none = "Nothing waits for approval" if self.pending else f"{whose}{which}"
            print(f"{none}, {self.period_text({'start': start, 'end': end})}.")
        else:
            print(self.bookings_table(found["bookings"], owners=self.everybodys))
        return 0


class FreeApp(CalendarTask):
    """Show what is free."""

    name = "carme-hub reservations free"
    description = """Show how many GPUs of each type, or of one, are free, and when: in the next 24 hours, or from
    --from to --to."""
    examples = 'carme-hub reservations free --type a100 --from "tomorrow 8:00" --to 18:00'

    gpu_type = Unicode("", help="Only these GPUs, such as a100.").tag(config=True)
    begin = Unicode("", help="The start. The default is now.").tag(config=True)
    end = Unicode("", help="The end. The default is 24 hours later.").tag(config=True)
    aliases: Any = {
        **CalendarTask.aliases,
        "type": "FreeApp.gpu_type",
        "from": "FreeApp.begin",
        "to": "FreeApp.end",
    }

    async def task(self) -> int:
        """Show it."""
        positional_arguments(self)
        start, end = self.epoch_range(self.begin, self.end, _FREE)
        query = {"from": start, "to": end, **({"type": self.gpu_type} if self.gpu_type else {})}
        found = await self.request("GET", "free", query=query)
        if self.as_json:
            self.print_json(found)
        elif not found["types"]:
            print(f"There are no {self.gpu_type or 'GPUs'} that could be booked.")
        else:
            rows = [
                (band["gpu_type"], self.period_text(part), part["free"], band["total"])
                for band in found["types"]
                for part in band["parts"]
            ]
            print(table(("GPU", f"when ({self.time_zone.key})", "free", "of"), rows, "free of"))
        return 0


class ShowApp(CalendarTask):
    """Show one booking."""

    name = "carme-hub reservations show"
    description = "Show all details of one booking: carme-hub reservations show ID."
    examples = "carme-hub reservations show 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"

    async def task(self) -> int:
        """Show it."""
        (id,) = positional_arguments(self, "ID")
        found = await self.booking(id)
        if self.as_json:
            self.print_json(found)
            return 0
        lines = [(head, value) for head, value in self._lines(found).items() if value]
        width = max(len(head) for head, _ in lines)
        print("\n".join(f"{head.ljust(width)}  {value}" for head, value in lines))
        return 0

    def _lines(self, one: Mapping[str, Any]) -> dict[str, str]:
        people = [*one["users"], *([f"the group {one['group']}"] if one["group"] else [])]
        people += [f"everybody of {one['account']}"] if one["everybody"] else []
        places = [f"{each['node']} ({_place_text(each)})" for each in one["places"]]
        changed = f"{one['reason']} ({one['actor']})" if one["reason"] and one["actor"] else one["reason"]
        return {
            "title": title_text(one),
            "when": f"{self.period_text(one)} ({self.time_zone.key})",
            "GPUs": gpus(one),
            "state": state_text(one),
            "problem": one["problem"],
            "why": changed,
            "owner": one["owner"],
            "account": one["account"],
            "also for": ", ".join(people),
            "profile": one["profile"],
            "where": ", ".join(places),
            "GPU time": gpu_hours(one["amount"]) if one["amount"] else "",
            "first used": self._at(one["used"]),
            "over since": self._at(one["ended"]),
            "booked": self._at(one["created"]),
            "times of": one["series"],
            "in Slurm": ",".join(one["slurm"]),
            "you may": ", ".join(one["may"]),
            "id": one["id"],
        }

    def _at(self, at: int) -> str:
        return f"{datetime.fromtimestamp(at, self.time_zone):%a %Y-%m-%d %H:%M}" if at else ""


def _place_text(place: Mapping[str, Any]) -> str:
    return "the whole node" if place["whole"] else f"{place['gpus']} {place['gpu_type']}"
