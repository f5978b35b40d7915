"""``carme-hub console stop | message | announce | …``: acts of administrators; each has a reason."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from traitlets import Bool, Enum, Unicode

from carme_hub.cli.base import YES_FLAG, UsageError, positional_arguments
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.reservations.times import local_zone, moment, read_time, read_zone

from .show import ROOT, ConsoleTask

_TIME = "Such as 18:00 or “mon 08:00”, in this machine's time zone."


class _Act(ConsoleTask):
    """An act; ``--reason`` is kept in the audit log."""

    reason = Unicode("", help="Why; it is kept in the audit log.").tag(config=True)
    aliases: Any = {**ConsoleTask.aliases, "reason": "_Act.reason"}

    async def post(self, hub: HubClient, path: str, said: str, **body: Any) -> int:
        """Send it, and print what was done; fields without a value are left out."""
        if not self.reason.strip():
            raise UsageError("say why with --reason; it is kept in the audit log")
        values = {name: value for name, value in body.items() if value not in ("", 0, False)}
        _, found = await hub.request("POST", f"{ROOT}/{path}", {**values, "reason": self.reason})
        if self.as_json:
            self.print_json(found)
        else:
            more = {name: found[name] for name in ("id", "recipients") if found.get(name)}
            print(said + "".join(f" ({name}: {value})" for name, value in more.items()))
        return 0

    def time_of(self, text: str) -> int:
        """Return a time of the command line as UTC epoch seconds, 0 for none."""
        if not text:
            return 0
        zone = read_zone(local_zone())
        return moment(read_time(text, zone, time.time()), zone)


class _AboutOne(_Act):
    """An act on one thing, which cannot be undone or affects others: it is confirmed."""

    flags: Any = {**_Act.flags, **YES_FLAG}

    def one(self, name: str) -> str:
        """Return the argument, made fit for a path."""
        (value,) = positional_arguments(self, name)
        return quote(value, safe="")


class StopApp(_AboutOne):
    """Stop a session; its user reads the reason."""

    name = "carme-hub console stop"
    description = "Stop a session, by its id as carme-hub console sessions shows it. Its user reads the reason."
    examples = 'carme-hub console stop 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071 --reason "The node is repaired."'

    async def task(self, hub: HubClient) -> int:
        """Stop it."""
        id = self.one("SESSION")
        self.confirm("Stop this session? What is not saved in it is lost.")
        return await self.post(hub, f"sessions/{id}/stop", "It is being stopped.")


class MessageApp(_Act):
    """Write to a user, to all on a node, to a group, or to everybody."""

    name = "carme-hub console message"
    description = """Write to one user (--user), to all on a node (--node), to a group (--group) or to --everybody. It
    appears on their page of the hub and in JupyterLab until they have seen it."""
    examples = 'carme-hub console message "Please save your work." --node node1 --reason "A fan fails."'

    user = Unicode("", help="To this user.").tag(config=True)
    node = Unicode("", help="To all on this node.").tag(config=True)
    group = Unicode("", help="To this group of the hub; account:NAME is a Slurm account.").tag(config=True)
    everybody = Bool(False, help="To everybody.").tag(config=True)
    until = Unicode("", help=f"After that it is not shown any more; the default is a week. {_TIME}").tag(config=True)
    mail = Bool(False, help="By mail too, where the hub sends mail.").tag(config=True)
    aliases: Any = {**_Act.aliases, **{name: f"MessageApp.{name}" for name in ("user", "node", "group", "until")}}
    flags: Any = {
        **_Act.flags,
        "everybody": ({"MessageApp": {"everybody": True}}, "To everybody."),
        "mail": ({"MessageApp": {"mail": True}}, "By mail too, where the hub sends mail."),
    }

    async def task(self, hub: HubClient) -> int:
        """Send it."""
        (text,) = positional_arguments(self, "TEXT")
        named = [(to, name) for to in ("user", "node", "group") if (name := getattr(self, to))]
        named += [("everybody", "")] if self.everybody else []
        if len(named) != 1:
            raise UsageError("say to whom: one of --user, --node, --group or --everybody")
        [(to, name)] = named
        ends = self.time_of(self.until)
        return await self.post(hub, "messages", "It is sent.", to=to, name=name, text=text, ends=ends, mail=self.mail)


class AnnounceApp(_Act):
    """Announce something to everybody."""

    name = "carme-hub console announce"
    description = """Announce something to everybody, on their pages and in JupyterLab: between --from and --to, or with
    --kind maintenance from now until the maintenance between these times is over."""
    examples = 'carme-hub console announce "New nodes are there." --to "fri 18:00" --reason "News"'

    kind = Enum(("announcement", "maintenance"), default_value="announcement", help="What it is.").tag(config=True)
    begin = Unicode("", help=f"From when; the default is now. {_TIME}").tag(config=True)
    end = Unicode("", help=f"Until when. {_TIME}").tag(config=True)
    aliases: Any = {**_Act.aliases, "kind": "AnnounceApp.kind", "from": "AnnounceApp.begin", "to": "AnnounceApp.end"}

    async def task(self, hub: HubClient) -> int:
        """Announce it."""
        (text,) = positional_arguments(self, "TEXT")
        if not self.end:
            raise UsageError("say with --to when it ends")
        begins, ends = self.time_of(self.begin), self.time_of(self.end)
        body = {"kind": self.kind, "text": text, "begins": begins, "ends": ends}
        return await self.post(hub, "announcements", "It is announced.", **body)


class WithdrawApp(_AboutOne):
    """Take back a message from those who have not seen it, or an announcement."""

    name = "carme-hub console withdraw"
    description = (
        "Take back a message from those who have not seen it, or an announcement. A mail cannot be taken back."
    )
    examples = 'carme-hub console withdraw 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071 --reason "Wrong node"'

    async def task(self, hub: HubClient) -> int:
        """Take it back."""
        return await self.post(hub, f"messages/{self.one('MESSAGE')}/withdraw", "It is taken back.")


class DrainApp(_AboutOne):
    """Let nothing new start on a node; what runs there continues."""

    name = "carme-hub console drain"
    description = "Let nothing new start on a node, after a list of who is on it. What runs there continues."
    examples = 'carme-hub console drain node1 --reason "A fan fails."'

    async def task(self, hub: HubClient) -> int:
        """Drain it."""
        node = self.one("NODE")
        _, found = await hub.request("GET", f"{ROOT}/jobs?node={node}")
        for job in found["jobs"]:
            self.note(f"{job['user']}: job {job['id']} {job['name']}")
        self.confirm(f"Drain it? {found['count']} jobs are on it, and continue.")
        return await self.post(hub, f"nodes/{node}/drain", "It is drained.")


class ResumeApp(_AboutOne):
    """Let jobs start on a node again."""

    name = "carme-hub console resume"
    description = "Let jobs start on a node again."
    examples = 'carme-hub console resume node1 --reason "The fan is new."'

    async def task(self, hub: HubClient) -> int:
        """Resume it."""
        return await self.post(hub, f"nodes/{self.one('NODE')}/resume", "Jobs can start on it again.")


class StopStartsApp(_AboutOne):
    """Let nothing new start: at all, of a profile, or in a partition."""

    name = "carme-hub console stop-starts"
    description = "Let nothing new start, or nothing of a profile or in a partition. What runs is not affected."
    examples = 'carme-hub console stop-starts --profile h100 --until "mon 08:00" --reason "New driver."'

    profile = Unicode("", help="Only of this profile, by its slug.").tag(config=True)
    partition = Unicode("", help="Only in this partition.").tag(config=True)
    until = Unicode("", help=f"The default is until starts are allowed again. {_TIME}").tag(config=True)
    aliases: Any = {**_Act.aliases, **{name: f"StopStartsApp.{name}" for name in ("profile", "partition", "until")}}

    async def task(self, hub: HubClient) -> int:
        """Stop them."""
        positional_arguments(self)
        self.confirm("Stop new starts? Users read the reason in the form.")
        body = {"profile": self.profile, "partition": self.partition, "until": self.time_of(self.until)}
        return await self.post(hub, "start-stops", "They are stopped.", **body)


class AllowStartsApp(_AboutOne):
    """Allow new starts again."""

    name = "carme-hub console allow-starts"
    description = "Allow new starts again: RULE is an id that carme-hub console starts shows."
    examples = 'carme-hub console allow-starts 0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071 --reason "The driver is there."'

    async def task(self, hub: HubClient) -> int:
        """Allow them."""
        return await self.post(hub, f"start-stops/{self.one('RULE')}/allow", "They are allowed again.")
