"""What JupyterHub and the console know of a user: access, sessions, shares, tokens, and the user themselves.

All of it goes through the REST of the running hub, which so agrees with it. A user whom the hub does not know has none
of it; since a token without the scope would get the same answer, the scopes are checked before (``check_scopes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable, server_path
from carme_hub.domain.administration.offboarding import Item
from carme_hub.domain.administration.scopes import OPERATE
from carme_hub.errors import Refused

from .locks import ROOT
from .parts import Part

#: Scopes that an offboarding needs, and those that it needs to delete the user too.
SCOPES = (OPERATE, "read:users:name", "read:servers", "delete:servers", "read:tokens", "tokens", "shares")
REMOVES = ("delete:users",)


async def check_scopes(hub: HubClient, needed: Sequence[str]) -> None:
    """Raise ``Refused`` where the token lacks a scope: what it may not see would look as if it were not there."""
    _, found = await hub.request("GET", "/user")
    scopes = found.get("scopes", ()) if isinstance(found, dict) else ()
    if missing := [name for name in needed if name not in scopes]:
        raise Refused(
            f"The token lacks: {', '.join(missing)}. The hub's page /hub/token makes one for administrators; a service "
            "needs a role with these scopes.",
            reason="forbidden",
        )


class HubPart(Part):
    """A part that the hub knows.

    Args:
        user: the name. reason: what the audit log and the user read.
    """

    def __init__(self, hub: HubClient, user: str, reason: str) -> None:
        self.hub, self.user, self.reason = hub, user, reason
        self._path = quote(user, safe="")

    async def get(self, path: str) -> Any:
        """Return an answer, None for 404: the hub does not know the user, or has no such thing of theirs."""
        try:
            _, found = await self.hub.request("GET", path)
        except HubRefused as error:
            if error.status == 404:
                return None
            raise
        return found

    async def items_of(self, path: str) -> list[dict[str, Any]]:
        """Return all entries of a list of JupyterHub that comes in pages."""
        found: list[dict[str, Any]] = []
        offset: int | None = 0
        while offset is not None:
            page = await self.get(f"{path}?offset={offset}")
            if page is None:
                return found
            try:
                found += page["items"]
                following = page["_pagination"]["next"]
                offset = int(following["offset"]) if following else None
            except (KeyError, TypeError, ValueError) as error:
                raise HubUnreachable(f"{self.hub.api} does not answer {path} as JupyterHub does") from error
        return found

    async def ask(self, method: str, path: str, *past: int, body: object = None) -> None:
        """Send a request; refusals with a status of ``past``, and 404, say that it is over already, or soon."""
        try:
            await self.hub.request(method, path, body)
        except HubRefused as error:
            if error.status not in (404, *past):
                raise


class Access(HubPart):
    """Whether the user may log in."""

    name, effect = "access", "locked"

    async def look(self) -> Sequence[Item]:
        """Return one item unless the user is locked."""
        found = await self.get(f"{ROOT}/locked-users")
        try:
            names = {one["user"] for one in found["locked"]}
        except (KeyError, TypeError) as error:
            raise HubUnreachable(f"{self.hub.api} does not answer as a hub of this release does") from error
        return () if self.user in names else (Item("may log in, where the settings allow it", "access"),)

    async def end(self, items: Sequence[Item]) -> None:  # noqa: ARG002
        """Lock the user."""
        await self.hub.request("POST", f"{ROOT}/users/{self._path}/lock", {"reason": self.reason})


class Sessions(HubPart):
    """Open sessions with their companions and batch jobs, and servers of the hub that have no session."""

    name, effect, needs = "sessions", "stopped", ("access",)

    def __init__(self, hub: HubClient, user: str, reason: str) -> None:
        super().__init__(hub, user, reason)
        self._ending: set[str] = set()
        self._servers: dict[str, str] = {}

    async def look(self) -> Sequence[Item]:
        """Return them; companions end with their sessions, and are listed too."""
        rows = await self._rows()
        self._ending = {str(row["id"]) for row in rows if row["state"] == "ending"}
        found = [Item(_session_words(row), str(row["id"])) for row in rows]
        of_sessions = {row["server"] for row in rows if row["kind"] == "session"}
        try:
            servers = await self.hub.servers(self.user)
        except HubRefused as error:
            if error.status != 404:
                raise
            servers = []
        alone = [str(one.get("name", "")) for one in servers if one.get("name", "") not in of_sessions]
        self._servers = {f"server {name}": name for name in alone}
        return [*found, *(Item(f"server {name}".strip(), id) for id, name in self._servers.items())]

    async def _rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        page = pages = 1
        while page <= pages:
            one = await self.get(f"{ROOT}/sessions?user={self._path}&sort=since&page={page}")
            try:
                found += [row for row in one["sessions"] if row["user"] == self.user]
                pages, page = int(one["pages"]), page + 1
            except (KeyError, TypeError, ValueError) as error:
                raise HubUnreachable(f"{self.hub.api} does not answer as a hub with a console does") from error
        return list({row["id"]: row for row in found}.values())

    async def end(self, items: Sequence[Item]) -> None:
        """Stop them; what is ending already is not asked again."""
        for item in items:
            if item.id in self._servers:
                # 400: it is starting or stopping.
                await self.ask("DELETE", server_path(self.user, self._servers[item.id]), 400)
            elif item.id not in self._ending:
                await self.ask("POST", f"{ROOT}/sessions/{item.id}/stop", body={"reason": self.reason})


class Shares(HubPart):
    """Servers that the user shares, codes for more shares, and servers of others that are shared with the user."""

    name, effect, needs = "shares", "revoked", ("access",)

    def __init__(self, hub: HubClient, user: str, reason: str) -> None:
        super().__init__(hub, user, reason)
        self._paths: dict[str, str] = {}

    async def look(self) -> Sequence[Item]:
        """Return them, each server once."""
        paths: dict[str, tuple[str, str]] = {}
        try:
            for one in await self.items_of(f"/shares/{self._path}"):
                path = f"/shares/{self._path}/{quote(one['server']['name'], safe='')}"
                paths[path] = path, f"shares their server {one['server']['name']}".strip()
            for one in await self.items_of(f"/share-codes/{self._path}"):
                path = f"/share-codes/{self._path}/{quote(one['server']['name'], safe='')}"
                paths[path] = path, f"has codes to share their server {one['server']['name']}".strip()
            for one in await self.items_of(f"/users/{self._path}/shared"):
                if not one.get("user") or one["user"]["name"] != self.user:
                    continue  # by a group, whose membership is not the hub's to end
                owner, server = one["server"]["user"]["name"], one["server"]["name"]
                path = f"/users/{self._path}/shared/{quote(owner, safe='')}/{quote(server, safe='')}"
                paths[path] = path, f"may use {owner}'s server {server}".strip()
        except (KeyError, TypeError) as error:
            raise HubUnreachable(f"{self.hub.api} does not describe shares as JupyterHub does") from error
        return [Item(words, path) for path, words in paths.values()]

    async def end(self, items: Sequence[Item]) -> None:
        """Revoke them."""
        for item in items:
            await self.ask("DELETE", item.id)


class Tokens(HubPart):
    """API tokens, of the user's own programs and of services and servers that acted for the user."""

    name, effect, needs = "tokens", "deleted", ("access",)

    async def look(self) -> Sequence[Item]:
        """Return them; what they are for, and nothing secret."""
        found = await self.get(f"/users/{self._path}/tokens")
        try:
            tokens = found["api_tokens"] if found is not None else ()
            return [Item(f"{one['note'] or one['oauth_client']} ({one['id']})", one["id"]) for one in tokens]
        except (KeyError, TypeError) as error:
            raise HubUnreachable(f"{self.hub.api} does not describe tokens as JupyterHub does") from error

    async def end(self, items: Sequence[Item]) -> None:
        """Delete them; with one of a service's, JupyterHub deletes all that it has of the user."""
        for item in items:
            await self.ask("DELETE", f"/users/{self._path}/tokens/{quote(item.id, safe='')}")


class HubUser(HubPart):
    """The user in JupyterHub's own database.

    Args:
        removes: whether the user is deleted there.
    """

    name, effect, needs = "hub user", "deleted", ("access", "sessions", "jobs", "bookings", "shares", "tokens")

    def __init__(self, hub: HubClient, user: str, reason: str, *, removes: bool) -> None:
        super().__init__(hub, user, reason)
        self._removes = removes

    async def look(self) -> Sequence[Item]:
        """Return one item while the hub knows the user."""
        if await self.get(f"/users/{self._path}") is None:
            return ()
        kept = "" if self._removes else "stays known to the hub, locked; --remove deletes it there"
        return (Item(f"{self.user} in JupyterHub", "user", kept),)

    async def end(self, items: Sequence[Item]) -> None:  # noqa: ARG002
        """Delete the user."""
        await self.ask("DELETE", f"/users/{self._path}")


def _session_words(row: dict[str, Any]) -> str:
    where = f"on {row['node']}" if row["node"] else ""
    name = " ".join(word for word in (row["kind"], row["server"], where) if word)
    gpus = f"{row['gpus']} {row['gpu_type']}" if row["gpus"] else ""
    job = f"job {row['job']}" if row["job"] else ""
    return ", ".join(word for word in (name, row["state"], gpus, job) if word)
