"""``carme-hub users offboard``: end what somebody who leaves has here; everything is listed first."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

from traitlets import Bool, Float, List, TraitError, Unicode
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.booking.settings import CarmeReservations
from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, positional_arguments, table
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.hub_command import HubTask
from carme_hub.cli.quotas.ledger_access import open_ledger
from carme_hub.cli.reservations.service_client import PUBLIC_HUB_URL_VARIABLE
from carme_hub.domain.administration import offboarding
from carme_hub.domain.administration.offboarding import Found, State
from carme_hub.errors import CarmeError, Refused
from carme_hub.folders.scopes import FOLDERS
from carme_hub.folders.settings import CarmeFolders
from carme_hub.slurm.settings import CarmeSlurm

from . import calendar_parts, hub_parts, ledger_parts, sharing_parts
from .folders import Folders, archive_of, folders_of
from .job_parts import Jobs
from .locks import REASON_NEEDED, ROOT
from .parts import Offboarding, Part, Unreadable, looked_at

_LEFT_TO_PEOPLE = """\
Not done here: the account in the directory, groups, and the associations in Slurm
(sacctmgr -i delete user name={user} cluster={cluster})."""


class OffboardApp(HubTask):
    """End what somebody who leaves has here."""

    name = "carme-hub users offboard"
    description = """End what somebody who leaves has here: the user is locked, sessions are stopped, jobs and bookings
    cancelled, shares revoked, tokens deleted, waiting requests denied, and held GPU time is given back to its account.
    First all of it is listed, and you are asked; --dry-run only lists. What is not answered is unknown, and not done.
    The same command goes on after a crash, and does nothing twice. Run it on the hub's machine as the hub's user, with
    --archive as root. The token needs admin rights in the hub. Exit status: 0 all is done (with --dry-run: known), 1
    something is left or not known, 2 it could not begin."""
    examples = """carme-hub users offboard alice --dry-run
    carme-hub users offboard alice --reason "Her contract has ended."
    carme-hub users offboard alice --reason "Left in May" --remove --archive /home/archive --yes"""

    reason = Unicode("", help="Why; it is kept in the audit log, and the user may read it. Required.").tag(config=True)
    dry_run = Bool(False, help="List what is there and what would become of it; do nothing.").tag(config=True)
    remove = Bool(
        False,
        help="""Delete the user in JupyterHub, too. By default the user stays there, locked. In both cases nobody can
        log in by this name until carme-hub users unlock.""",
    ).tag(config=True)
    all_jobs = Bool(
        False, help="Cancel the user's jobs in Slurm that came by other ways (sbatch), too; the default lists them."
    ).tag(config=True)
    give_to = Unicode(
        "",
        help="""Move what accounts have left of which the user was the only member to this account. By default it stays
        where it is.""",
    ).tag(config=True)
    archive = Unicode(
        "",
        help="""Move the user's folders into this folder, as they are; it must be on the same file system. By default
        they are only listed. Nothing is ever deleted.""",
    ).tag(config=True)
    folders = List(
        Unicode(),
        help="""Further folders of the user, besides the home folder and NAME below each writable bind. Give the option
        once for each.""",
    ).tag(config=True)
    wait = Float(180.0, min=0.0, help="Seconds for the end of each part, before it counts as left.").tag(config=True)
    every = Float(5.0, min=0.01, help="Seconds between two looks at what is ending.").tag(config=True)
    aliases: Any = {
        **ConfiguredApp.aliases,
        **HubTask.aliases,
        **{name.replace("_", "-"): f"OffboardApp.{name}" for name in ("reason", "give_to", "archive", "wait", "every")},
        "folder": "OffboardApp.folders",
    }
    flags: Any = {
        **HubTask.flags,
        **YES_FLAG,
        "dry-run": ({"OffboardApp": {"dry_run": True}}, "List what is there; do nothing."),
        "remove": ({"OffboardApp": {"remove": True}}, "Delete the user in JupyterHub, too."),
        "all-jobs": ({"OffboardApp": {"all_jobs": True}}, "Cancel jobs that came by other ways, too."),
    }

    def address(self) -> str:
        """Return the hub's public address: its services do not answer at the internal one."""
        return self.hub or os.environ.get(PUBLIC_HUB_URL_VARIABLE, "") or super().address()

    async def work(self) -> int:
        """List, ask, and do it."""
        user = _user_name(*positional_arguments(self, "NAME"))
        if not self.dry_run and not self.reason.strip():
            raise UsageError(REASON_NEEDED)
        config = self.configuration()
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(HubClient(self.address(), self.token(), self.ca))
            parts = await self._parts(stack, config, hub, user)
            found = [await self.with_progress(f"looking at {part.name}", looked_at(part)) for part in parts]
            _check_known(user, found)
            if self.dry_run:
                self._show(user, found, planned=True)
                return 1 if any(part.state is State.UNKNOWN for part in found) else 0
            if offboarding.all_done(found):
                self._show(user, found, planned=False)
                return 0
            if not self.as_json:
                print(table(("part", "what", "then"), offboarding.rows(found, planned=True)))
            self.confirm(f"End all this of {user}?")

            async def record(did: str, outcome: str) -> None:
                path = f"{ROOT}/users/{quote(user, safe='')}/offboardings"
                await hub.request("POST", path, {"reason": self.reason, "did": did, "outcome": outcome})

            ended = await Offboarding(record, self.note, wait=self.wait, every=self.every).run(parts)
        self._show(user, ended, planned=False)
        if offboarding.all_done(ended):
            self.note(_LEFT_TO_PEOPLE.format(user=user, cluster=CarmeSlurm(config=config).cluster))
            return 0
        return 1

    async def _parts(self, stack: AsyncExitStack, config: Config, hub: HubClient, user: str) -> list[Part]:
        """Return all parts in the order in which they end."""
        reserves, charges = CarmeReservations(config=config).enabled, CarmeQuotas(config=config).enabled
        shares = CarmeFolders(config=config).enabled
        scopes = [*hub_parts.SCOPES, *(hub_parts.REMOVES if self.remove else ())]
        scopes += [sharing_parts.SCOPE] if shares else []
        await hub_parts.check_scopes(hub, [*scopes, *((calendar_parts.SCOPE,) if reserves else ())])
        about = (hub, user, self.reason)
        folders = folders_of(user, config, self.folders)
        archive = archive_of(self.archive, folders)
        jobs = Jobs(CarmeSlurm(config=config).client(), user, every=self.all_jobs)
        parts: list[Part] = [hub_parts.Access(*about), hub_parts.Sessions(*about), jobs]
        if reserves:
            service = HubClient(self.address(), self.token(), self.ca, service="reservations")
            calendar = await stack.enter_async_context(service)
            parts.append(calendar_parts.Bookings(calendar, user, self.reason))
        if shares:
            service = HubClient(self.address(), self.token(), self.ca, service=FOLDERS)
            parts.append(sharing_parts.SharedFolders(await stack.enter_async_context(service), user))
        parts += [hub_parts.Shares(*about), hub_parts.Tokens(*about)]
        if reserves or charges:
            parts += await self._ledger_parts(stack, user, reserves=reserves, charges=charges)
        parts.append(Folders(user, folders, archive, lambda: jobs.kept))
        return [*parts, hub_parts.HubUser(*about, removes=self.remove)]

    async def _ledger_parts(self, stack: AsyncExitStack, user: str, *, reserves: bool, charges: bool) -> list[Part]:
        kinds = [ledger_parts.CalendarFeed] if reserves else []
        money = (ledger_parts.GpuTimeRequests, ledger_parts.Holds) if charges else ()
        try:
            access = await stack.enter_async_context(open_ledger(self))
        except (CarmeError, TraitError, OSError) as error:
            names = [kind.name for kind in (*kinds, *money, *((ledger_parts.Balances,) if charges else ()))]
            return [Unreadable(name, CarmeError(str(error))) for name in names]
        parts: list[Part] = [kind(access, user, self.reason) for kind in (*kinds, *money)]
        if charges:
            parts.append(ledger_parts.Balances(access, user, self.reason, target=self.give_to))
        return parts

    def _show(self, user: str, found: Sequence[Found], *, planned: bool) -> None:
        done = offboarding.all_done(found)
        if self.as_json:
            self.print_json({"user": user, "done": done, "parts": offboarding.to_json(found)})
            return
        print(table(("part", "what", "then" if planned else ""), offboarding.rows(found, planned=planned)))
        if planned:
            print("Nothing is done.")
        elif done:
            print(f"Nothing of {user} is left here, besides what is kept.")
        else:
            print("Not all is done. The same command goes on.")


def _user_name(word: str) -> str:
    """Return the name of a user, which is also one of a folder."""
    if not word.isprintable() or "/" in word or word.strip() != word or word in ("", ".", ".."):
        raise UsageError(f"{word!r} is not the name of a user")
    return word


def _check_known(user: str, found: Sequence[Found]) -> None:
    """Refuse a name of which nobody knows anything: it may be misspelt."""
    if any(part.state is State.UNKNOWN for part in found):
        return
    if any(part.items for part in found if part.name != "access") or all(not part.items for part in found):
        return
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise Refused(
            f"Neither the hub nor this machine knows a user {user}. Is it misspelt?", reason="unknown"
        ) from None
