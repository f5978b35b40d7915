"""``carme-hub reservations book``: book GPUs once or repeatedly, or check first whether that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traitlets import Bool, Integer, Unicode

from carme_hub.cli.base import UsageError, new_key, positional_arguments, table
from carme_hub.cli.hub_client import HubRefused, HubUnreachable

from .alternatives import alternatives_text
from .service_client import CalendarTask, hold_text
from .times import local_text, rest_time


class BookApp(CalendarTask):
    """Book GPUs."""

    name = "carme-hub reservations book"
    description = """Book GPUs: carme-hub reservations book TITLE --type a100 --from … --to …. The calendar decides, by
    the same rules as for its pages; where GPUs are taken it prints alternatives, as commands. Write times as
    2026-12-01 09:00, "tomorrow 9:00", "thu 18:00", or 18:00. Exit status: 0 booked (or on the waitlist, or waiting
    for approval; with --dry-run: it could be booked), 1 refused, 2 the calendar did not answer."""
    examples = """carme-hub reservations book "ML class" --account teaching --type a100 --seats 4 --group course-ml \\
    --from "2026-12-01 09:00" --to 11:00 --rule "FREQ=WEEKLY;BYDAY=TU;COUNT=12" --dry-run"""

    account = Unicode("", help="The Slurm account that pays. The default is your first.").tag(config=True)
    gpu_type = Unicode("", help="Which GPUs, such as a100; `carme-hub reservations free` lists them. Required.").tag(
        config=True
    )
    gpus = Integer(1, min=0, help="GPUs of one seat, which are on one node; 0 is a whole node. The default is 1.").tag(
        config=True
    )
    seats = Integer(1, min=1, help="How many sessions can run in it at once. The default is 1.").tag(config=True)
    begin = Unicode("", help="The start. Required.").tag(config=True)
    end = Unicode("", help="The end; a time without a day is on the day of the start.").tag(config=True)
    length = Unicode("", help="The length, such as 2h or 90min, in place of --to.").tag(config=True)
    rule = Unicode(
        "",
        help="""The recurrence: a rule of RFC 5545 with COUNT or UNTIL, such as FREQ=WEEKLY;BYDAY=TU;COUNT=12. It
        follows the wall clock of the zone.""",
    ).tag(config=True)
    without = Unicode(
        "",
        help="Starts of the recurrence to leave out, separated by commas: 2026-12-22T09:00.",
    ).tag(config=True)
    owner = Unicode("", help="The user for whom an administrator books it.").tag(config=True)
    users = Unicode("", help="Users who may start sessions in it besides you, separated by commas.").tag(config=True)
    group = Unicode("", help="A hub group whose members may start sessions in it.").tag(config=True)
    everybody = Bool(False, help="All users of the account may start sessions in it.").tag(config=True)
    profile = Unicode("", help="Slug of the profile that its sessions must use. The default is any.").tag(config=True)
    wait = Bool(False, help="Go on the waitlist where it is not free; not for recurring bookings.").tag(config=True)
    dry_run = Bool(False, help="Check whether it could be booked; book nothing.").tag(config=True)
    key = Unicode("", help="Idempotency key: the same key books only once. The default is a new one.").tag(config=True)
    aliases: Any = {
        "account": "BookApp.account",
        "type": "BookApp.gpu_type",
        "gpus": "BookApp.gpus",
        "seats": "BookApp.seats",
        "from": "BookApp.begin",
        "to": "BookApp.end",
        "length": "BookApp.length",
        "rule": "BookApp.rule",
        "without": "BookApp.without",
        "owner": "BookApp.owner",
        "users": "BookApp.users",
        "group": "BookApp.group",
        "profile": "BookApp.profile",
        "key": "BookApp.key",
        **CalendarTask.aliases,
    }
    flags: Any = {
        **CalendarTask.flags,
        "everybody": ({"BookApp": {"everybody": True}}, "All users of the account may start sessions in it."),
        "wait": ({"BookApp": {"wait": True}}, "Go on the waitlist where it is not free; not for recurring bookings."),
        "dry-run": ({"BookApp": {"dry_run": True}}, "Check whether it could be booked; book nothing."),
    }

    async def task(self) -> int:
        """Book it, or check it with ``--dry-run``."""
        body = self.body()
        if self.dry_run:
            return self._print_check(await self.request("POST", "check", body))
        key = new_key(self.key)
        try:
            found = await self.request("POST", "bookings", {**body, "wait": True} if self.wait else body, key=key)
        except HubRefused as error:
            if self.as_json or not error.answer.get("conflicts"):
                raise
            self.note(f"{self.name}: {error.message}")
            self.note(self._alternatives(error.answer["conflicts"]))
            return 1
        except HubUnreachable as error:
            command = self._command_with({"key": key}, wait=self.wait)
            raise HubUnreachable(f"{error}. It may be booked nevertheless; this books it once:\n  {command}") from error
        first = found["bookings"][0]
        if first["waits"]:
            what = "It is not free. It is on the waitlist, and is booked automatically as soon as it is free."
        elif first["state"] == "pending":
            what = "It waits for an administrator's approval; the GPUs are kept meanwhile."
        else:
            what = f"Booked. {hold_text(sum(each['amount'] or 0 for each in found['bookings']))}".rstrip()
        return self.print_bookings(found, what)

    def body(self) -> dict[str, Any]:
        """Return the body of the request; the service checks it."""
        (title,) = positional_arguments(self, "TITLE")
        if not self.gpu_type:
            raise UsageError("name the GPUs with --type; `carme-hub reservations free` lists them")
        first, last = self.times(self.begin, self.end, self.length)
        # A command that is pasted later must mean the same times, and a new booking.
        self._fixed_times = {"from": local_text(first), "to": local_text(last), "length": "", "key": ""}
        optional = {
            "account": self.account,
            "owner": self.owner,
            "rule": self.rule,
            "without": _names(self.without),
            "users": _names(self.users),
            "group": self.group,
            "everybody": self.everybody,
            "profile": self.profile,
        }
        return {
            **{"title": title, "gpu_type": self.gpu_type, "gpus": self.gpus, "seats": self.seats},
            **{"start": rest_time(first), "end": rest_time(last), "zone": self.time_zone.key},
            **{name: value for name, value in optional.items() if value},
        }

    def _command_with(self, changes: Mapping[str, str], *, wait: bool = False) -> str:
        """Return this command with other options."""
        flags = {"--everybody": self.everybody, "--wait": wait}
        return self.command_with({**self._fixed_times, **changes}, *(flag for flag, on in flags.items() if on))

    def _print_check(self, found: Mapping[str, Any]) -> int:
        """Print whether it could be booked, and alternatives."""
        if self.as_json:
            self.print_json(found)
            return 0 if found["granted"] else 1
        refusal = found["refusal"] or "These GPUs are not free at all of these times."
        print("It could be booked now." if found["granted"] else refusal)
        print(
            table(
                (f"when ({self.time_zone.key})", ""),
                [(self.period_text(each), each["note"]) for each in found["times"]],
            )
        )
        if found["needs_approval"]:
            print("An administrator would have to approve it.")
        for line in filter(None, (hold_text(found["amount"]).replace("holds", "would hold"), *found["notes"])):
            print(line)
        if found["conflicts"]:
            print(self._alternatives(found["conflicts"]))
        return 0 if found["granted"] else 1

    def _alternatives(self, conflicts: Sequence[Mapping[str, Any]]) -> str:
        """Return the alternatives as text."""
        if self.rule:
            left_out = [*_names(self.without), *(each["occurrence"] for each in conflicts)]
            more = [("all other times", self._command_with({"without": ",".join(left_out)}))]
        else:
            more = [("wait until it is free", self._command_with({}, wait=True))]
        single_options = {"rule": "", "without": ""}
        return alternatives_text(
            conflicts, self.time_zone, self._command_with, once=not self.rule, single_options=single_options, more=more
        )


def _names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
