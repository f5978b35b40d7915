"""What a rolling update asks of the hub and its calendar, by REST, as an administrator with the scope to operate.

A refusal (``HubRefused``) is an answer; ``HubUnreachable`` proves nothing, and the caller asks again later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable
from carme_hub.domain.administration.scopes import OPERATE
from carme_hub.errors import Refused

ROOT = "/carme/console"
#: Words of a node's state, besides "down", in which Slurm could not start a job there if it were resumed.
NOT_WELL = frozenset(
    {
        *("error", "unknown", "not_responding", "no_respond", "invalid", "invalid_reg", "fail", "failing"),
        *("powering_down", "powered_down", "powering_up", "reboot", "reboot_issued", "reboot_requested", "future"),
    }
)
#: Words of the state of a node on which something may run, although Slurm shows no job.
_MAYBE_BUSY = frozenset({"not_responding", "no_respond", "completing"})


@dataclass(frozen=True, slots=True)
class NodeNow:
    """One node as Slurm shows it now, through the hub.

    Attributes:
        state: words of its state: the base state, then the flags. why: its reason, as words. jobs: how many are on it.
    """

    name: str
    state: tuple[str, ...]
    drained: bool
    why: str
    jobs: int
    cpus_used: int

    @property
    def is_empty(self) -> bool:
        """Whether certainly nothing runs on it. Of one that does not answer nobody knows."""
        quiet = self.state[0] in ("idle", "down") and not _MAYBE_BUSY & set(self.state)
        return quiet and not self.jobs and not self.cpus_used

    @property
    def is_well(self) -> bool:
        """Whether Slurm could start jobs on it, if it were resumed."""
        return self.answers and self.state[0] != "down"

    @property
    def answers(self) -> bool:
        """Whether it is registered with Slurm, and nothing but a state of "down" keeps jobs from it."""
        return not NOT_WELL & set(self.state)


class HubNodes:
    """The hub. ``calendar``: the client of its reservations service."""

    def __init__(self, hub: HubClient, calendar: HubClient) -> None:
        self._hub, self._calendar = hub, calendar

    async def check_access(self) -> None:
        """Raise ``Refused`` where the token may not drain nodes."""
        _, found = await self._hub.request("GET", "/user")
        scopes = found.get("scopes", ()) if isinstance(found, dict) else ()
        if OPERATE not in scopes:
            raise Refused(
                f"The token lacks the scope {OPERATE}; the hub's page /hub/token makes one for administrators.",
                reason="forbidden",
            )

    # -- what is there ------------------------------------------------------------------------------------------------

    async def node(self, name: str) -> NodeNow | None:
        """Return a node, None where Slurm has none of that name."""
        rows = await self._list("nodes", id=name)
        return _node(rows[0]) if rows else None

    async def users_on(self, name: str) -> tuple[int, Sequence[str]]:
        """Return how many jobs are on a node, and users of them (of the first page)."""
        rows = await self._list("jobs", node=name)
        return len(rows), sorted({str(row["user"]) for row in rows})

    async def _list(self, what: str, **query: str) -> list[dict[str, Any]]:
        _, found = await self._hub.request("GET", f"{ROOT}/{what}?{urlencode(query)}")
        try:
            return list(found[what])
        except (KeyError, TypeError) as error:
            raise HubUnreachable(f"{self._hub.api} does not answer as a hub with a console does") from error

    # -- acts; each is in the audit log -------------------------------------------------------------------------------

    async def drain(self, name: str, reason: str) -> None:
        """Let nothing new start on a node; of one that is drained already, change the reason."""
        await self._post(f"nodes/{quote(name, safe='')}/drain", reason)

    async def resume(self, name: str, reason: str) -> None:
        """Let jobs start on a node again."""
        await self._post(f"nodes/{quote(name, safe='')}/resume", reason)

    async def tell(self, name: str, text: str, reason: str, ends: float, *, mail: bool) -> str:
        """Write to all on a node; return the message's id, "" where nobody is there."""
        body = {"to": "node", "name": name, "text": text, "ends": ends, **({"mail": True} if mail else {})}
        try:
            found = await self._post("messages", reason, **body)
        except HubRefused as error:
            if error.answer.get("field") == "name":  # nobody whom it would reach
                return ""
            raise
        return str(found.get("id", ""))

    async def told(self, name: str, text: str, since: float) -> str:
        """Return the id of such a message where it was sent since then; "" = it was not, among the newest."""
        for one in await self._list("messages"):
            if (one.get("target"), one.get("text")) == (f"node {name}", text) and float(one.get("at", 0)) >= since:
                return str(one["id"])
        return ""

    async def withdraw(self, message: str, reason: str) -> None:
        """Take a message back from those who have not seen it; it may be over already."""
        try:
            await self._post(f"messages/{message}/withdraw", reason)
        except HubRefused as error:
            if error.status not in (404, 409):
                raise

    async def stop_sessions(self, name: str, reason: str) -> int:
        """Stop the hub's sessions on a node; return how many. Jobs that came by other ways continue."""
        rows = [row for row in await self._list("sessions", node=name) if row.get("state") != "ending"]
        for row in rows:
            try:
                await self._post(f"sessions/{row['id']}/stop", reason)
            except HubRefused as error:
                if error.status != 404:  # it has ended by itself
                    raise
        return len(rows)

    async def note(self, name: str, reason: str, did: str, outcome: str) -> None:
        """Have it in the audit log that the site's command or check ran."""
        more = {"outcome": outcome} if outcome else {}
        await self._post(f"nodes/{quote(name, safe='')}/updates", reason, did=did, **more)

    async def _post(self, path: str, reason: str, **body: Any) -> dict[str, Any]:
        _, found = await self._hub.request("POST", f"{ROOT}/{path}", {**body, "reason": reason})
        return found if isinstance(found, dict) else {}

    # -- the calendar -------------------------------------------------------------------------------------------------

    async def reserve(self, name: str, start: float, seconds: int, title: str, key: str) -> str:
        """Plan maintenance of a node; return its id. The same key plans it once."""
        body = {"nodes": [name], "start": int(start), "end": int(start) + seconds, "title": title}
        found = await self._write_calendar("maintenance", body, key)
        return str(found["maintenance"]["id"])

    async def unreserve(self, id: str, reason: str, key: str) -> None:
        """End the maintenance, whether it has begun or not; it may be over already."""
        for verb in ("cancel", "release"):
            try:
                await self._write_calendar(f"bookings/{id}/{verb}", {"reason": reason}, f"{key}-{verb}")
            except HubRefused as error:
                if error.status not in (403, 404, 409, 400):
                    raise
            else:
                return

    async def _write_calendar(self, path: str, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        _, found = await self._calendar.request("POST", f"/{path}", body, {"Idempotency-Key": key})
        if not isinstance(found, dict):
            raise HubUnreachable(f"{self._calendar.api} does not answer as a calendar does")
        return found


def _node(row: Mapping[str, Any]) -> NodeNow:
    try:
        words = tuple(str(row["state"]).lower().split()) or ("unknown",)
        counts = int(row["jobs"]), int(row["cpus_used"])
        return NodeNow(str(row["id"]), words, bool(row["drained"]), str(row["reason"]), *counts)
    except (KeyError, ValueError) as error:
        raise HubUnreachable(f"the hub does not describe a node as this release does: {error}") from error
