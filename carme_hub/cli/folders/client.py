"""Base class of the commands on folders: requests to the folders service, and folders as text."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from carme_hub.cli.base import table
from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable
from carme_hub.cli.hub_command import HubTask
from carme_hub.cli.reservations.service_client import PUBLIC_HUB_URL_VARIABLE
from carme_hub.errors import CarmeError
from carme_hub.folders.scopes import FOLDERS

ROLE_WORDS = {"owner": "owner", "rw": "reads and writes", "ro": "reads", "": "-"}


class FolderTask(HubTask):
    """A command that uses the folders service."""

    aliases: Any = {**HubTask.aliases}

    def address(self) -> str:
        """Return the hub's public address: a session's JUPYTERHUB_API_URL is internal, where no service answers."""
        return self.hub or os.environ.get(PUBLIC_HUB_URL_VARIABLE, "") or super().address()

    async def ask(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Return the document with which the service answers."""
        address = f"/{path}" + (f"?{urlencode(query)}" if query else "")
        async with HubClient(self.address(), self.token(), self.ca, service=FOLDERS) as client:
            try:
                _, found = await self.with_progress("asking the service", client.request(method, address, body))
            except HubRefused as error:
                if error.status == 401:
                    raise CarmeError("the hub does not take the token; its page /hub/token makes a new one") from error
                raise
            if not isinstance(found, dict):
                raise HubUnreachable(f"{client.api} does not answer as the folders service does")
            return found

    async def every(self, path: str, query: Mapping[str, object]) -> dict[str, Any]:
        """Return all pages of a list of folders as one."""
        found: dict[str, Any] = {"folders": []}
        cursor = ""
        while True:
            page = await self.ask("GET", path, query={**query, "limit": 200, "cursor": cursor})
            found["folders"] += page["folders"]
            before, cursor = cursor, str(page.get("next", ""))
            if not cursor or cursor == before:
                return found

    def say(self, found: Mapping[str, Any], text: str) -> int:
        """Print an answer as JSON, or what it means; a problem of the folder follows on stderr."""
        if self.as_json:
            self.print_json(found)
        else:
            print(text)
        if found.get("problem"):
            self.note(f"Not applied yet, and tried again: {found['problem']}")
        return 0


def path_of(name: str, *rest: object) -> str:
    """Return the path of a folder below the service's REST API."""
    return "/".join(["folders", quote(name, safe=""), *(quote(str(part), safe="") for part in rest)])


def folder_table(folders: list[Mapping[str, Any]]) -> str:
    """Return folders as a table."""
    rows = []
    for one in folders:
        owner = one["owner"] if one["owner_kind"] == "user" else f"account {one['owner']}"
        notes = ["dataset"] if one["dataset"] else []
        notes += ["published"] if one["published"] else []
        notes += ["invited"] if one["invitations"] else []
        notes += ["not applied yet"] if one["problem"] else []
        notes += ["changed by hand"] if one["drift"] else []
        rows.append([one["name"], owner, ROLE_WORDS[one["my_role"]], one["place"], ", ".join(notes)])
    return table(["Folder", "Owner", "You", "In sessions", "Notes"], rows)


def folder_text(one: Mapping[str, Any]) -> str:
    """Return a folder as lines of text."""
    owner = one["owner"] if one["owner_kind"] == "user" else f"account {one['owner']}"
    facts = {
        "Folder": one["name"],
        "Id": one["id"],
        "Owner": owner,
        "You": ROLE_WORDS[one["my_role"]],
        "In sessions": one["place"],
        "On the cluster": one["path"],
        "Description": one["description"],
        "Licence": one["licence"],
        "Checksums": one["checksums"],
        "Compared": one["verified"],
        "Offered to": one["handover"],
        "Not applied yet": one["problem"],
    }
    lines = [f"{name + ':':<17} {value}" for name, value in facts.items() if value]
    lines += [f"Changed by hand:  {each}" for each in one["drift"]]
    lines += [f"Warning:          {each}" for each in one["warnings"]]
    if one["managed"] and one["members"]:
        rows = [
            [str(row["id"]), row["kind"], row["subject"], ROLE_WORDS[row["role"]], row["state"], _day(row["expires"])]
            for row in one["members"]
        ]
        lines += ["", table(["Member", "Kind", "Name", "Role", "State", "Until"], rows)]
    return "\n".join(lines)


def counts_text(found: Mapping[str, Any]) -> str:
    """Return what a scan has found."""
    lacking = sum(found["unusable"].values())
    lines = [f"{found['files']} files and {found['folders']} folders; members cannot use {lacking} of them."]
    lines += [f"  {ascii(name)[1:-1]}" for name in found["names"]]
    if found["mended"]:
        lines.insert(0, f"{found['mended']} of yours are open to the members now.")
    if found["hard_links"]:
        lines.append(f"{found['hard_links']} files have a second name (hard links), and are left as they are.")
    return "\n".join(lines)


def _day(at: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at)) if at else ""
