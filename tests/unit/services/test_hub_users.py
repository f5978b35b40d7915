"""Everybody's groups are asked of the hub in small parts, since the hub does nothing else while it reads one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from carme_hub.domain.quotas.rules import SubjectKind
from carme_hub.services import hub_users
from carme_hub.services.hub_users import HubUsers

USERS = [
    {"name": f"u{number:02}", "groups": ["even"] if number % 2 == 0 else [], "admin": False} for number in range(45)
]


class HubWithManyUsers:
    """Answers as JupyterHub's list of users does, a part at a time."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    async def __call__(self, path: str, query: Mapping[str, Any], **_more: object) -> dict[str, Any]:
        assert path == "users"
        offset, limit = query["offset"], query["limit"]
        self.limits.append(limit)
        following = {"offset": offset + limit} if offset + limit < len(USERS) else None
        return {"items": USERS[offset : offset + limit], "_pagination": {"next": following}}


async def test_everybody_is_known_from_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = HubWithManyUsers()
    monkeypatch.setattr(hub_users, "ask_hub", hub)
    found = HubUsers(logging.getLogger("test"))
    await found.refresh()
    assert sorted(found.people) == [user["name"] for user in USERS]
    assert len(found.members(SubjectKind.GROUP, "even")) == 23
    assert hub.limits == [20, 20, 20]


async def test_what_was_known_stays_while_the_hub_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_users, "ask_hub", HubWithManyUsers())
    found = HubUsers(logging.getLogger("test"))
    await found.refresh()

    async def silent(*_words: object, **_more: object) -> dict[str, Any]:
        raise OSError("silent")

    monkeypatch.setattr(hub_users, "ask_hub", silent)
    await found.refresh(0.0)
    assert found.known
    assert len(found.people) == 45
