"""``carme-hub activity``: jobs that have ended and what accounts did not use, from a terminal or a script."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from traitlets import Bool, Integer, Unicode

from carme_hub.cli.base import CommandGroup, positional_arguments, table
from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable
from carme_hub.cli.hub_command import HubTask
from carme_hub.cli.reservations.service_client import PUBLIC_HUB_URL_VARIABLE
from carme_hub.domain.wording import duration
from carme_hub.errors import CarmeError

SERVICE = "activity"
_UNKNOWN = "unknown"


class ActivityApp(CommandGroup):
    """The commands on what jobs used."""

    name = "carme-hub activity"
    description = """Show what jobs used of what they asked for, from a login node, your own machine or a script: by the
    hub's activity service, with one of your tokens. --hub is the hub's address as in a browser. The token needs the
    scopes access:services!service=activity and custom:carme:activity:read; to see what all accounts did not use,
    custom:carme:activity:unused. Exit status: 0 done, 1 refused, 2 the service did not answer."""

    subcommands: Any = {
        "jobs": ("carme_hub.cli.activity.command.JobsApp", "List jobs that have ended, with advice"),
        "unused": ("carme_hub.cli.activity.command.UnusedApp", "Show what accounts had and did not use, by week"),
    }


class ActivityTask(HubTask):
    """A command that uses the activity service."""

    aliases: Any = {**HubTask.aliases}

    def address(self) -> str:
        """Return the hub's public address: a session's JUPYTERHUB_API_URL is internal, where no service answers."""
        return self.hub or os.environ.get(PUBLIC_HUB_URL_VARIABLE, "") or super().address()

    async def ask(self, path: str, query: Mapping[str, object]) -> dict[str, Any]:
        """Return the document with which the service answers."""
        async with HubClient(self.address(), self.token(), self.ca, service=SERVICE) as client:
            address = f"/{path}?{urlencode({name: value for name, value in query.items() if value != ''})}"
            try:
                _, found = await self.with_progress("asking the service", client.request("GET", address))
            except HubRefused as error:
                if error.status == 401:
                    raise CarmeError("the hub does not take the token; its page /hub/token makes a new one") from error
                raise
            if not isinstance(found, dict):
                raise HubUnreachable(f"{client.api} does not answer as the activity service does")
            return found


class JobsApp(ActivityTask):
    """List jobs that have ended."""

    name = "carme-hub activity jobs"
    description = """List your jobs that have ended: in one line what each asked for and used, and what to ask for next
    time. With --advice only those with a suggestion."""
    examples = "carme-hub activity jobs --days 7\ncarme-hub activity jobs --advice --json"

    days = Integer(30, min=1, max=400, help="Days of their ends; the default is 30.").tag(config=True)
    user = Unicode("", help="Whose jobs. Others' need the scope custom:carme:activity:read:all.").tag(config=True)
    advice = Bool(False, help="Only jobs with a suggestion.").tag(config=True)
    aliases: Any = {**ActivityTask.aliases, "days": "JobsApp.days", "user": "JobsApp.user"}
    flags: Any = {**ActivityTask.flags, "advice": ({"JobsApp": {"advice": True}}, "Only jobs with a suggestion.")}

    async def work(self) -> int:
        """List them."""
        positional_arguments(self)
        found = await self.ask("jobs", {"days": self.days, "user": self.user})
        if self.advice:
            found["jobs"] = [job for job in found["jobs"] if job["suggestion"]]
        if self.as_json:
            self.print_json(found)
        elif not found["jobs"]:
            print(f"No job{' with a suggestion' if self.advice else ''} has ended in the last {self.days} days.")
        else:
            print("\n\n".join(job_text(job) for job in found["jobs"]))
        return 0


class UnusedApp(ActivityTask):
    """Show what accounts did not use."""

    name = "carme-hub activity unused"
    description = """Show what accounts had and did not use in the last weeks: GPU-hours of GPUs that were never used,
    CPU-hours and GiB-hours of memory. What is not known is in a column of its own, and in no other. Administrators see
    all accounts, owners of an account in Slurm (coordinators) see theirs; with an account, each of its weeks."""
    examples = "carme-hub activity unused --weeks 4\ncarme-hub activity unused physics --json"

    weeks = Integer(13, min=1, max=104, help="This week and those before it; the default is 13.").tag(config=True)
    aliases: Any = {**ActivityTask.aliases, "weeks": "UnusedApp.weeks"}

    async def work(self) -> int:
        """Show it."""
        account = "" if not self.extra_args else positional_arguments(self, "[ACCOUNT]")[0]
        found = await self.ask("unused", {"weeks": self.weeks, "account": account})
        if self.as_json:
            self.print_json(found)
        elif not found["accounts"]:
            print(f"No job has ended in the last {self.weeks} weeks.")
        elif account:
            [one] = found["accounts"]
            names = [time.strftime("%Y-%m-%d", time.gmtime(week["week"])) for week in one["weeks"]]
            print(unused_table("Week from", zip(names, one["weeks"], strict=True)))
        else:
            print(unused_table("Account", [(each["account"], each["total"]) for each in found["accounts"]]))
        return 0


def job_text(job: Mapping[str, Any]) -> str:
    """Return a job as lines of text."""
    width = max(60, min(120, shutil.get_terminal_size().columns))
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(job["ended"]))
    name = job["name"] or ("session" if job["session"] else "job")
    ran = duration(int(job["used"]["seconds"]) // 60 * 60) if job["used"]["seconds"] >= 60 else "less than a minute"
    lines = [f"{job['shown_id']}  {name}  {job['state'].replace('_', ' ').lower()}  {ended}  after {ran}"]
    for text in (job["line"], job["suggestion"], job["note"]):
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def unused_table(first: str, rows: Any) -> str:
    """Return a table of what was not used."""
    heads = [first, "Jobs", "GPU-h", "unused", "unknown", "busy", "CPU-h", "unused ", "unknown ", "GiB-h", "unused  "]
    heads.append("unknown  ")
    numeric = " ".join(head.replace(" ", "_") for head in heads[1:])
    return table(heads, [_row(name, of) for name, of in rows], numeric)


def _row(name: str, of: Mapping[str, Any]) -> list[str]:
    cells = [name, str(of["jobs"])]
    for part in ("gpu_hours", "cpu_hours", "memory_gib_hours"):
        every, unused, unknown = (float(of[f"{part}{suffix}"]) for suffix in ("", "_unused", "_unknown"))
        # Nothing of it is known: then "0 unused" would be wrong.
        said = _UNKNOWN if every and unknown >= every else f"{unused:.1f}"
        cells += [f"{every:.1f}", said, f"{unknown:.1f}"]
        if part == "gpu_hours":
            cells.append("-" if of["gpu_busy"] is None else f"{of['gpu_busy']:.0f} %")
    return cells
