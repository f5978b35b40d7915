"""The policy's pages: the policy in force, its history, and a new policy, which is tried before it is activated."""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.web import HTTPError

from carme_hub.accounting.policy_trial import Trial
from carme_hub.accounting.settings import read_policy
from carme_hub.domain import wording
from carme_hub.domain.quotas.replay import Replay, ReplayLine
from carme_hub.domain.quotas.rules import DAY
from carme_hub.errors import ConfigError
from carme_hub.services.hub_users import PAGE_MAX_AGE
from carme_hub.services.quotas.application import policies, view
from carme_hub.services.quotas.application.policy_trials import PolicyTrial
from carme_hub.services.quotas.pages.admin import AdminHandler
from carme_hub.services.quotas.pages.base import BadForm
from carme_hub.services.quotas.scopes import POLICY, READ_ALL

#: Days on which a new policy is tried.
TRIAL_DAYS = 30
MAX_LINES = 100
#: Seconds that the form waits for its trial, and after which the page of a running trial reloads.
TRIAL_WAIT, REFRESH = 0.7, 2


class PolicyHandler(AdminHandler):
    """The policy in force, and the form to change it."""

    scopes: tuple[str, ...] = (POLICY, READ_ALL)

    async def get(self) -> None:
        """Show the policy."""
        await self.form(None)

    async def form(self, text: str | None, **more: Any) -> None:
        """Show the page; ``text`` is what was typed."""
        found = await asyncio.to_thread(policies.current_policy, self.service)
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
            edits=self.has_scope(POLICY) and not found.fixed,
            days=TRIAL_DAYS,
            **more,
        )

    def preview(self, trial: PolicyTrial) -> None:
        """Show what would change, and the outcome of the trial."""
        self.show(
            "policy_preview.html",
            heading="Activate a new policy?",
            text=trial.text,
            reason=trial.reason,
            stamp=trial.stamp,
            changes=trial.changes,
            preview=replay_shown(trial.outcome.replay, self.zone) if trial.outcome else None,
            counted=counted(trial.outcome, self.zone) if trial.outcome else None,
            failure=trial.failure,
            lacks_members=trial.lacks_members,
            days=TRIAL_DAYS,
        )


class PolicyTryHandler(PolicyHandler):
    """The form with a new policy: shows its error, or the outcome of a trial."""

    scopes = write_scopes = (POLICY,)

    async def post(self) -> None:
        """Check the policy, and try it on the jobs of the last days."""
        text = self.get_body_argument("policy", "", strip=False).replace("\r\n", "\n")
        reason = self.text("reason", "The reason")
        if len(text) > policies.MAX_LENGTH:
            raise BadForm(f"A policy has at most {policies.MAX_LENGTH:,} characters.")
        try:
            policy = read_policy(text, "policy")
        except ConfigError as error:
            await self.form(text, wrong=str(error).removeprefix("policy: "), reason=reason)
            return
        found = await asyncio.to_thread(policies.current_policy, self.service)
        changes = policies.changed_lines(found.text, policies.policy_text(policy))
        if not changes:
            await self.form(text, wrong="This is the same policy as the one in force.", reason=reason)
            return
        await self.service.hub_users.refresh(PAGE_MAX_AGE)
        now = self.now
        trial = self.service.trials.begin(
            *(text, reason, self.text("stamp", "The stamp", max_length=64), changes),
            lacks_members=policies.lacks_members(self.service, policy),
            now=now,
            work=lambda report: policies.try_policy(self.service, policy, now - TRIAL_DAYS * DAY, now, report),
        )
        if await trial.wait(TRIAL_WAIT):
            self.preview(trial)
        else:
            self.redirect(f"{self.service.prefix}administration/policy/trial/{trial.id}", status=303)


class TrialHandler(PolicyHandler):
    """A longer trial: shows its progress, and then its outcome."""

    scopes = (POLICY,)

    async def get(self, id: str = "") -> None:
        """Show the progress; the page reloads by itself."""
        trial = self.service.trials.get(id)
        if trial is None:
            raise HTTPError(
                404, log_message="This trial is no longer kept: the service was restarted, or newer ones replaced it. "
                "Check and try the policy again.",
            )  # fmt: skip
        if trial.is_done:
            self.preview(trial)
            return
        self.set_header("Refresh", str(REFRESH))
        self.show(
            "policy_trial.html",
            heading="The policy is being tried",
            progress=trial.progress,
            since=wording.duration(max(1, int(self.now - trial.started))),
            days=TRIAL_DAYS,
            reason=trial.reason,
        )


class PolicyActivationHandler(AdminHandler):
    """The form that activates a policy."""

    write_scopes = (POLICY,)

    async def post(self) -> None:
        """Write the policy."""
        text = self.get_body_argument("policy", "", strip=False).replace("\r\n", "\n")
        stamp, reason = self.text("stamp", "The stamp", max_length=64), self.text("reason", "The reason")
        try:
            await policies.activate(self.service, text, stamp=stamp, actor=self.visitor.name, reason=reason)
        except ConfigError as error:
            raise BadForm(f"The policy is not in force: {error}") from error
        self.log_write("activated a new policy: %s", reason)
        self.done("The new policy is in force.", "administration/policy")


def replay_shown(outcome: Replay, zone: str) -> dict[str, Any]:
    """Return a replay as the page shows it."""
    total = outcome.total
    return {
        "jobs": total.jobs,
        "refused": total.refused,
        "soft": total.soft,
        "used": view.hours(total.before),
        "lost": view.hours(total.refused_amount),
        "rules": list(outcome.rules.items()),
        "lines": [_line(line, zone) for line in outcome.lines if line.refused or line.soft][:MAX_LINES],
    }


def counted(tried: Trial, zone: str) -> dict[str, str]:
    """Return from when on use counts in the policy's windows, and how much of it accounting does not know."""
    if tried.use_since >= tried.since:
        return {"since": "", "missing": ""}
    missing = view.hours(tried.missing) if tried.missing else ""
    known = view.clock(tried.known or tried.since, zone)
    return {
        "since": view.clock(tried.use_since, zone) if tried.use_since else known,
        "missing": missing,
        "known": known,
    }


def _line(line: ReplayLine, zone: str) -> dict[str, Any]:
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
    ("administration/policy/try", PolicyTryHandler),
    ("administration/policy/trial/([0-9a-f]{16})", TrialHandler),
    ("administration/policy/switch", PolicyActivationHandler),
]
