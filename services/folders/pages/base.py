"""The base handler of all pages of the folders service."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from carme_hub.domain.folders.rules import Actor
from carme_hub.services import pages
from carme_hub.services.folders.rest.acts import folder_out
from carme_hub.services.folders.scopes import ADMIN, READ, WRITE
from carme_hub.store.folders.store import WithMembers

ROLE_WORDS = {"owner": "owner", "rw": "reads and writes", "ro": "reads", "": "no access"}


class FolderPage(pages.PageHandler):
    """A page of shared folders."""

    scopes: tuple[str, ...] = (READ,)
    write_scopes: tuple[str, ...] = (WRITE,)
    actor: Actor

    async def prepare(self) -> None:
        """Find out also the groups and accounts of the visitor."""
        await super().prepare()
        if not self._finished:
            self.actor = await self.service.people.actor(self.visitor, admin=self.has_scope(ADMIN))

    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs that the visitor may open."""
        found = [("", "My folders"), ("datasets", "Datasets")]
        if self.has_scope(ADMIN):
            found.append(("all", "All folders"))
        return self.tabs_of(*found)

    def row(self, found: WithMembers) -> dict[str, Any]:
        """Return a folder for a template: as REST has it, with words for people."""
        row = folder_out(self.service, found, self.actor).model_dump()
        whose = row["owner"] if row["owner_kind"] == "user" else f"account {row['owner']}"
        users = sum(1 for one in found.members if one.desired_role(time.time()))
        offers = [
            {
                "by": one.invited_by,
                "kind": one.kind.value,
                "subject": one.subject,
                "role": one.role,
                "until": day(one.expires),
            }
            for one in found.members
            if one.id in row["invitations"]
        ]
        return {**row, "whose": whose, "role_words": ROLE_WORDS[row["my_role"]], "users": users, "offers": offers}

    def show(self, template: str, **more: Any) -> None:
        """Send a page; ``can_write``: whether the visitor may send its forms."""
        super().show(template, can_write=self.has_scope(WRITE), **more)


def day(at: float) -> str:
    """Return "2026-11-27", "" for 0: as HTML's date field has it."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d}" if at else ""
