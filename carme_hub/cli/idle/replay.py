"""``carme-hub idle replay``: try a policy's rules on idle sessions on past sessions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from traitlets import Integer, Unicode

from carme_hub.accounting.settings import read_policy
from carme_hub.activity.idle.trial import IdleTrial, Tried, try_idle_rules
from carme_hub.activity.settings import DAY, CarmeActivity
from carme_hub.cli.base import ConfiguredApp, UsageError, positional_arguments, table
from carme_hub.cli.quotas.ledger_access import LedgerAccess, hours, open_ledger, read_time
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.wording import duration
from carme_hub.store.activity import ActivityStore
from carme_hub.store.threads import in_store_thread

#: Days that are tried without ``--from``, and milli-GPU-seconds of a GPU-second.
LAST_DAYS, MILLI = 30, 1000


class ReplayApp(ConfiguredApp):
    """Try rules on idle sessions on past sessions."""

    name = "carme-hub idle replay"
    description = """Show what rules on idle sessions would have done to the sessions of a time: which they would have
    ended, how much GPU time that would have given back, and which were at work again within ten minutes (false
    alarms). The rules are the part ``idle`` of a policy. Nobody says "I am still here" in a replay, so the true
    numbers are lower. Evidence is kept as long as hours are (CarmeActivity.keep_hours), in whole percent. Nothing is
    written, and the policy does not come into force."""
    examples = "carme-hub idle replay --policy new.yaml --from 2026-10-01 --to 2026-10-31"

    policy = Unicode("", help="The YAML file of the policy. The default is the policy in force.").tag(config=True)
    since = Unicode("", help="First day (or time), in the policy's zone. The default is 30 days ago.").tag(config=True)
    until = Unicode("", help="Last day (or time). The default is now.").tag(config=True)
    lines = Integer(20, min=0, max=10_000, help="How many sessions to list; the sums have all.").tag(config=True)
    aliases: Any = {
        **ConfiguredApp.aliases,
        "policy": "ReplayApp.policy",
        "from": "ReplayApp.since",
        "to": "ReplayApp.until",
        "lines": "ReplayApp.lines",
    }

    async def work(self) -> int:
        """Replay the sessions, and print what the rules would have done."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            policy, now = self._policy(access), time.time()
            if not policy.idle:
                raise UsageError("the policy has no rules on idle sessions: name one that has an idle part by --policy")
            since = read_time(self.since, policy.zone) if self.since else now - LAST_DAYS * DAY
            until = min(now, read_time(self.until, policy.zone, after=1)) if self.until else now
            if until <= since:
                raise UsageError("--to must be after --from")
            kept = CarmeActivity(config=access.config).keep_hours * DAY
            if since < now - kept:
                self.note(f"What sessions did is kept for {kept / DAY:.0f} days; earlier ones count as not measured.")
            cluster = access.slurm.cluster
            parts = access.sessions, ActivityStore(access.engine, cluster), cluster, policy, await access.people()
            trying = in_store_thread(try_idle_rules, *parts, since, until)
            return self._print(access, await self.with_progress("replaying what sessions did", trying), since, until)

    def _policy(self, access: LedgerAccess) -> Policy:
        if not self.policy:
            return access.policy()
        try:
            return read_policy(Path(self.policy).read_text(encoding="utf-8"), self.policy)
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.policy} is no text: {error}") from error

    def _print(self, access: LedgerAccess, trial: IdleTrial, since: float, until: float) -> int:
        if self.as_json:
            self.print_json(_document(trial, since, until))
            return 0
        rows = [_row(access, each) for each in trial.tried[: self.lines]]
        if rows:
            columns = ("user", "profile", "idle since", "action", "at", "GPU-hours", "worked after", "")
            print(table(columns, rows, "GPU-hours"))
        if more := len(trial.tried) - len(rows):
            print(f"and {more} more sessions")
        months = [(one.month, one.ended, hours(MILLI * one.gpu_seconds), one.false_alarms) for one in trial.months]
        if months:
            headers = ("month", "ended", "GPU-hours given back", "false alarms")
            print("\n" + table(headers, months, "ended GPU-hours_given_back false_alarms"))
        else:
            print("No session would have been ended.")
        print(f"\n{trial.sessions} sessions ran. False alarms were at work again within ten minutes.")
        if trial.unmeasured:
            print(
                f"Of {trial.unmeasured} nothing is kept: they were not measured, or are too old. They count as active."
            )
        if trial.minutes:
            share = 100 * trial.unknown / trial.minutes
            print(f"In {share:.0f} % of the reported minutes it is not known whether a session was idle.")
        return 0


def _row(access: LedgerAccess, each: Tried) -> tuple[object, ...]:
    outcome, session = each.outcome, each.session
    assert outcome.action is not None  # noqa: S101  those without are left out
    worked = duration(outcome.worked // 60 * 60) if outcome.worked else "-"
    return (
        *(session.user, session.request.profile, access.when(outcome.idle_since), outcome.action.value),
        *(access.when(outcome.at), hours(MILLI * each.given_back), worked),
        "false alarm" if outcome.is_false_alarm and each.is_ended else "",
    )


def _document(trial: IdleTrial, since: float, until: float) -> dict[str, Any]:
    """Return the trial as JSON; GPU time in GPU-seconds, times in UTC epoch seconds."""
    sessions = [
        {
            **{"session": each.session.id, "user": each.session.user, "account": each.session.request.account},
            **{"profile": each.session.request.profile, "gpus": each.session.request.gpus.count},
            **{"action": each.outcome.action.value if each.outcome.action else "", "at": int(each.outcome.at)},
            **{"idle_since": int(each.outcome.idle_since), "given_back": each.given_back},
            **{"at_work_again": int(each.outcome.back), "worked_after": each.outcome.worked},
            "false_alarm": each.is_ended and each.outcome.is_false_alarm,
        }
        for each in trial.tried
    ]
    months = [
        {"month": one.month, "ended": one.ended, "given_back": one.gpu_seconds, "false_alarms": one.false_alarms}
        for one in trial.months
    ]
    counted = {"sessions": trial.sessions, "not_measured": trial.unmeasured}
    counted |= {"minutes": trial.minutes, "unknown_minutes": trial.unknown}
    return {"from": int(since), "to": int(until), "months": months, "sessions": sessions, "counted": counted}
