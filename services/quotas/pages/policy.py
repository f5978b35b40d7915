"""The policy: as it is, its history, and a new one that is checked and tried before it is switched on."""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.web import HTTPError

from carme_hub.accounting.policy_trial import Trial
from carme_hub.accounting.settings import read_policy
from carme_hub.domain import wording
from carme_hub.domain.quotas.replay import Line, Replay
from carme_hub.domain.quotas.rules import DAY
from carme_hub.errors import ConfigError
from carme_hub.services.hub_users import LOOKED_AT
from carme_hub.services.quotas.application import policies, view
from carme_hub.services.quotas.application.policy_trials import PolicyTrial
from carme_hub.services.quotas.pages.admin import AdminHandler
from carme_hub.services.quotas.pages.base import BadForm
from carme_hub.services.quotas.scopes import POLICY, READ_ALL

#: Days on which a new policy is tried.
TRIED_DAYS = 30
MOST_LINES = 100
#: Seconds for which a form waits for its trial, and after which the page that waits asks again.
PATIENCE, AGAIN = 0.7, 2


class PolicyHandler(AdminHandler):
    """The policy in force, and the form that begins to change it."""

    scopes: tuple[str, ...] = (POLICY, READ_ALL)

    async def get(self) -> None:
        """Show it."""
        await self.form(None)

    async def form(self, text: str | None, **more: Any) -> None:
        """Show the page; ``text`` is what was typed."""
        found = await asyncio.to_thread(policies.current, self.service)
        notes = await policies.history(self.service)
        past = [
            {
                "id": note.id,
                "when": view.clock(note.at, self.zone),
                "actor": note.actor,
                "reason": note.value["reason"],
                "text": note.value["text"],
                "current": note.value["text"] == found.text,
            }
            for note in notes
        ]
        self.show(
            "policy.html",
            heading="Policy",
            current=found,
            text=found.text if text is None else text,
            history=past,
            edits=self.may(POLICY) and not found.fixed,
            days=TRIED_DAYS,
            **more,
        )

    def preview(self, tried: PolicyTrial) -> None:
        """Show what would change, and what came out."""
        self.show(
            "policy_preview.html",
            heading="Switch on a new policy?",
            text=tried.text,
            reason=tried.reason,
            stamp=tried.stamp,
            changes=tried.changes,
            preview=trial(tried.outcome.replay, self.zone) if tried.outcome else None,
            counted=counted(tried.outcome, self.zone) if tried.outcome else None,
            silent=tried.silent,
            members=tried.lacks_members,
            days=TRIED_DAYS,
        )


class TryHandler(PolicyHandler):
    """The form with a new policy: what is wrong with it, or what it would have done."""

    scopes = writes = (POLICY,)

    async def post(self) -> None:
        """Check it, and try it on the last days."""
        text = self.get_body_argument("policy", "", strip=False).replace("\r\n", "\n")
        reason = self.text("reason", "The reason")
        if len(text) > policies.LONGEST:
            raise BadForm(f"A policy has at most {policies.LONGEST:,} characters.")
        try:
            policy = read_policy(text, "policy")
        except ConfigError as error:
            await self.form(text, wrong=str(error).removeprefix("policy: "), reason=reason)
            return
        found = await asyncio.to_thread(policies.current, self.service)
        changes = policies.difference(found.text, policies.dumped(policy))
        if not changes:
            await self.form(text, wrong="This says the same as the policy that is in force.", reason=reason)
            return
        await self.service.roster.refresh(LOOKED_AT)
        now = self.now
        tried = self.service.trials.begin(
            *(text, reason, self.text("stamp", "The stamp", most=64), changes),
            lacks_members=policies.lacks_members(self.service, policy),
            now=now,
            work=lambda tell: policies.try_policy(self.service, policy, now - TRIED_DAYS * DAY, now, tell),
        )
        if await tried.wait(PATIENCE):
            self.preview(tried)
        else:
            self.redirect(f"{self.service.prefix}administration/policy/trial/{tried.id}", status=303)


class TrialHandler(PolicyHandler):
    """A trial that takes longer than a page may: that it is at work, and then what came out."""

    scopes = (POLICY,)

    async def get(self, id: str = "") -> None:
        """Show how far it is; the page asks again by itself."""
        tried = self.service.trials.get(id)
        if tried is None:
            raise HTTPError(
                404, log_message="This trial is no longer kept: the service was started anew, or others came after it. "
                "Check and try the policy again.",
            )  # fmt: skip
        if tried.is_done:
            self.preview(tried)
            return
        self.set_header("Refresh", str(AGAIN))
        self.show(
            "policy_trial.html",
            heading="The policy is being tried",
            said=tried.said,
            since=wording.duration(max(1, int(self.now - tried.begun))),
            days=TRIED_DAYS,
            reason=tried.reason,
        )


class SwitchHandler(AdminHandler):
    """The button that switches a policy on."""

    writes = (POLICY,)

    async def post(self) -> None:
        """Write it, and say so."""
        text = self.get_body_argument("policy", "", strip=False).replace("\r\n", "\n")
        stamp, reason = self.text("stamp", "The stamp", most=64), self.text("reason", "The reason")
        try:
            await policies.switch_on(self.service, text, stamp=stamp, actor=self.visitor.name, reason=reason)
        except ConfigError as error:
            raise BadForm(f"The policy is not in force: {error}") from error
        self.log_write("switched on a new policy: %s", reason)
        self.done("The new policy is in force.", "administration/policy")


def trial(outcome: Replay, zone: str) -> dict[str, Any]:
    """Return the outcome of a replay as it is shown."""
    total = outcome.total
    return {
        "jobs": total.jobs,
        "refused": total.refused,
        "soft": total.soft,
        "used": view.hours(total.before),
        "lost": view.hours(total.refused_amount),
        "rules": list(outcome.rules.items()),
        "lines": [_line(line, zone) for line in outcome.lines if line.refused or line.soft][:MOST_LINES],
    }


def counted(tried: Trial, zone: str) -> dict[str, str]:
    """Return from when on use counts in the policy's windows, and what is not known of it."""
    if tried.reaches >= tried.since:
        return {"since": "", "missing": ""}
    missing = view.hours(tried.missing) if tried.missing else ""
    known = view.clock(tried.known or tried.since, zone)
    return {
        "since": view.clock(tried.reaches, zone) if tried.reaches else known,
        "missing": missing,
        "known": known,
    }


def _line(line: Line, zone: str) -> dict[str, Any]:
    return {
        "user": line.user,
        "account": line.account,
        "jobs": line.jobs,
        "refused": line.refused,
        "used": view.hours(line.before),
        "lost": view.hours(line.refused_amount),
        "first": f"{view.clock(line.first_at, zone)}: {line.first}" if line.first else "",
    }


PAGES: list[tuple[str, type[AdminHandler]]] = [
    ("administration/policy", PolicyHandler),
    ("administration/policy/try", TryHandler),
    ("administration/policy/trial/([0-9a-f]{16})", TrialHandler),
    ("administration/policy/switch", SwitchHandler),
]
