"""Tabs of the console: messages and announcements, rules that stop new starts, and what administrators have done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tornado import web

from carme_hub.domain.administration.acts import ACTIONS, DONE
from carme_hub.domain.administration.messages import Kind, Message
from carme_hub.errors import StoreError
from carme_hub.spawners.console.acts import administration, until_words
from carme_hub.spawners.console.rows import PAGE
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.console.base import ROOT, ConsoleHandler
from carme_hub.store.threads import in_store_thread


class LogHandler(ConsoleHandler):
    """The base: a page of entries from the database, the newest first."""

    @web.authenticated
    async def get(self) -> None:
        """Show it."""
        hub = self.checked_hub()
        asked = self.asked("page")
        number = max(1, int(asked)) if asked.isascii() and asked.isdigit() and len(asked) < 7 else 1
        try:
            rows, count = await self.entries(administration(hub), PAGE, (number - 1) * PAGE)
            problem = ""
        except StoreError as error:
            hub.log.warning("The console's log cannot be read: %s", error)
            rows, count, problem = [], 0, "The database does not answer. Look again in a moment."
        query = {"action": self.asked("action"), "actor": self.asked("actor")}
        kept = {name: value for name, value in query.items() if value}
        await self.show(
            self.template,
            heading=dict(_HEADINGS)[self.tab],
            rows=rows,
            count=count,
            problem=problem,
            actions=ACTIONS,
            asked=query,
            before=self.address(self.tab, {**kept, "page": number - 1}) if number > 1 else "",
            after=self.address(self.tab, {**kept, "page": number + 1}) if number * PAGE < count else "",
        )

    template = "log.html"

    async def entries(self, ours: Any, limit: int, offset: int) -> tuple[Sequence[Any], int]:
        """Return some entries and how many there are."""
        raise NotImplementedError


class ActsHandler(LogHandler):
    """What administrators have done."""

    tab = "/acts"

    async def entries(self, ours: Any, limit: int, offset: int) -> tuple[Sequence[Any], int]:
        """Return acts as texts."""
        action, actor = self.asked("action"), self.asked("actor")
        found, count = await in_store_thread(ours.store.acts, limit, offset, action, actor)
        now = time.time()
        return [
            {
                "when": clock(each.at, now),
                "actor": each.actor.name,
                "action": each.action,
                "target": each.target,
                "reason": each.reason,
                "outcome": "" if each.outcome == DONE else each.outcome or "It is not known what came of it.",
                "details": _details(each.details, now),
            }
            for each in found
        ], count


def _details(details: Mapping[str, str], now: float) -> list[tuple[str, str]]:
    """Return what else is known of an act, without ids, and with times as words."""
    shown = {name: value for name, value in details.items() if value and name not in ("rule", "message")}
    return [(name, clock(float(value), now) if name in _TIMES else value) for name, value in shown.items()]


_TIMES = ("begins", "ends", "until")


class MessagesHandler(LogHandler):
    """Messages and announcements."""

    tab, template = "/messages", "messages.html"

    async def entries(self, ours: Any, limit: int, offset: int) -> tuple[Sequence[Any], int]:
        """Return them as texts."""
        found, count = await in_store_thread(ours.store.messages, limit, offset)
        return [message_words(each, time.time()) for each in found], count


def message_words(one: Message, now: float) -> dict[str, Any]:
    """Return what the console says of a message or an announcement."""
    if one.withdrawn:
        state = f"Taken back {clock(one.withdrawn, now)}."
    elif now >= one.ends:
        state = f"Over since {clock(one.ends, now)}."
    elif one.kind is Kind.INCIDENT:
        state = "It goes on."
    elif one.kind is Kind.MESSAGE:
        state = f"Until {clock(one.ends, now)}."
    else:
        state = f"{clock(one.begins, now)} to {clock(one.ends, now)}."
    seen = f"{one.seen} of {one.recipients} have seen it." if one.kind is Kind.MESSAGE else ""
    return {
        "id": one.id,
        "kind": one.kind.value,
        "when": clock(one.at, now),
        "actor": one.actor,
        "target": one.target,
        "text": one.text,
        "state": " ".join(each for each in (state, seen) if each),
        "withdraws": one.can_be_withdrawn(now),
        "goes_on": one.kind is Kind.INCIDENT and one.is_shown(now),
    }


class StartsHandler(ConsoleHandler):
    """The rules that stop new starts now."""

    tab = "/starts"

    @web.authenticated
    async def get(self) -> None:
        """Show them."""
        hub = self.checked_hub()
        now = time.time()
        rules = [
            {
                "id": rule.id,
                "about": rule.about,
                "reason": rule.reason,
                "actor": rule.actor,
                "when": clock(rule.at, now),
                "until": until_words(rule.until, clock),
            }
            for rule in administration(hub).stops()
        ]
        await self.show("starts.html", heading="New starts", rules=rules)


_HEADINGS = (("/acts", "What administrators have done"), ("/messages", "Messages and announcements"))
HANDLERS: list[tuple[str, Any]] = [
    (f"{ROOT}/acts", ActsHandler),
    (f"{ROOT}/messages", MessagesHandler),
    (f"{ROOT}/starts", StartsHandler),
]
