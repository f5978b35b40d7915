"""``carme-hub quotas replay | mirror``: try a policy on past jobs, and copy its limits to Slurm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traitlets import Bool, Unicode
from traitlets.config import Config

from carme_hub.accounting.policy_trial import Trial, try_policy
from carme_hub.accounting.settings import CarmeMirror, read_policy
from carme_hub.accounting.slurm_limits import MIRRORED, compare
from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, actor, positional_arguments, table
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.slurm_limits import Change, Plan
from carme_hub.slurm.limits import LimitsWriter, script
from carme_hub.slurm.usage import UsageReader

from .ledger_access import LedgerAccess, hours, open_ledger, read_time


class ReplayApp(ConfiguredApp):
    """Try a policy on past jobs."""

    name = "carme-hub quotas replay"
    description = """Show what would have become of the jobs of a time under a policy: which jobs it would have refused,
    whose, and how much they used. Jobs come from Slurm's accounting; earlier jobs fill the policy's windows. Nothing is
    written, and the policy does not come into force."""
    examples = "carme-hub quotas replay --policy new.yaml --from 2026-10-01 --to 2026-10-31"

    policy = Unicode("", help="The YAML file of the policy. The default is the policy in force.").tag(config=True)
    since = Unicode("", help="First day (or time), in the policy's zone. Required.").tag(config=True)
    until = Unicode("", help="Last day (or time). The default is now.").tag(config=True)
    aliases: Any = {
        **ConfiguredApp.aliases,
        "policy": "ReplayApp.policy",
        "from": "ReplayApp.since",
        "to": "ReplayApp.until",
    }

    async def work(self) -> int:
        """Replay the jobs, and print which the policy would have refused."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            policy = self._policy(access)
            if not self.since:
                raise UsageError("give the start: --from 2026-10-01")
            now = time.time()
            since = read_time(self.since, policy.zone)
            until = min(now, read_time(self.until, policy.zone, after=1)) if self.until else now
            if until <= since:
                raise UsageError("--to must be after --from")
            reader, context = UsageReader(access.slurm.commands()), access.ledger.context
            replaying = try_policy(context, reader, policy, await access.people(), since, until)
            return self._print(access, await self.with_progress("replaying what Slurm's accounting has", replaying))

    def _policy(self, access: LedgerAccess) -> Policy:
        if not self.policy:
            return access.policy()
        try:
            return read_policy(Path(self.policy).read_text(encoding="utf-8"), self.policy)
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.policy} is no text: {error}") from error

    def _print(self, access: LedgerAccess, trial: Trial) -> int:
        found = trial.replay
        total = found.total
        if self.as_json:
            lines = [
                {
                    **{"user": each.user, "account": each.account, "jobs": each.jobs, "refused": each.refused},
                    **{"soft": each.soft, "used": each.before, "used_by_refused": each.refused_amount},
                    **{"first_at": int(each.first_at), "first": each.first},
                }
                for each in found.lines
            ]
            sums = {"jobs": total.jobs, "refused": total.refused, "used": total.before}
            sums["used_by_refused"] = total.refused_amount
            counted = {"from": int(trial.use_since), "known_from": int(trial.known), "missing": trial.missing}
            self.print_json({"total": sums, "rules": dict(found.rules), "lines": lines, "counted": counted})
            return 0
        rows = [
            (one.user, one.account, one.jobs, one.refused, one.soft, hours(one.before), hours(one.refused_amount))
            for one in found.lines
        ]
        rows.append(
            ("total", "", total.jobs, total.refused, total.soft, hours(total.before), hours(total.refused_amount))
        )
        headers = ("user", "account", "jobs", "refused", "over soft", "GPU-hours", "of refused")
        print(table(headers, rows, "jobs refused over_soft GPU-hours of_refused"))
        for one in found.lines:
            if one.first:
                print(f"\n{one.user} in {one.account}, first at {access.when(one.first_at)}:\n  {one.first}")
        if found.rules:
            print("\n" + table(("rule", "refused"), list(found.rules.items()), "refused"))
        print(f"\nThe policy's windows count use from {access.when(trial.use_since or trial.known or trial.since)} on.")
        if trial.missing:
            print(f"Not in them: {hours(trial.missing)} GPU-hours in the ledger that Slurm's accounting has purged.")
        return 0


class MirrorApp(ConfiguredApp, CarmeMirror):
    """Copy the policy's limits to Slurm, which then keeps them by itself."""

    name = "carme-hub quotas mirror"
    description = """The second fence: compare the limits in Slurm with the policy, and with --apply write what an
    Operator of Slurm may write; what takes an administrator is printed as commands. Limits that somebody has set by
    hand are reported and kept, unless --force. Without --apply nothing is changed. Exits with 1 while Slurm is not as
    the policy wants it. Settings may also stand in the hub's file, such as c.CarmeMirror.budgets = "none"."""
    examples = "carme-hub quotas mirror --apply"

    apply = Bool(False, help="Write the changes.").tag(config=True)
    force = Bool(False, help="Overwrite limits that somebody has set by hand.").tag(config=True)
    aliases: Any = {
        **ConfiguredApp.aliases,
        **{name.replace("_", "-"): f"MirrorApp.{name}" for name in ("budgets", "prefix", "keep_qos", "session_qos")},
    }
    flags: Any = {
        **ConfiguredApp.flags,
        **YES_FLAG,
        "apply": ({"MirrorApp": {"apply": True}}, "Write the changes."),
        "force": ({"MirrorApp": {"force": True}}, "Overwrite limits that somebody has set by hand."),
        "every-job": ({"MirrorApp": {"every_job": True}}, "Limits of sessions hold for every job."),
    }

    async def work(self) -> int:
        """Compare and print; write with ``--apply``."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            overrides = {name: access.config[name] for name in ("CarmeMirror", "MirrorApp") if name in access.config}
            self.update_config(Config(overrides))
            self.update_config(self.cli_config)
            writer = LimitsWriter(access.slurm.commands(), access.slurm.cluster)
            comparison = compare(access.ledger, writer, self, access.prices, await access.people(), force=self.force)
            compared = await self.with_progress("reading Slurm's limits", comparison)
            plan, last = compared.plan, compared.last
            applied: Sequence[Change] = ()
            if self.apply:
                if plan.changes and self.force:
                    self.confirm(f"Change {len(plan.changes)} limits in Slurm, including those set by hand?")
                applied = await self.with_progress("writing limits", writer.apply(plan.changes))
                written = plan.written(last, applied)
                if applied or written != last:
                    changed = [f"{each.entity.value} {each.name} {each.key}={each.want}" for each in applied]
                    await access.ledger.add_note(MIRRORED, {"written": written, "changed": changed}, actor=actor())
            return self._print(access, plan, applied)

    def _print(self, access: LedgerAccess, plan: Plan, applied: Sequence[Change]) -> int:
        left = [change for change in plan.changes if change not in applied]
        commands = script(plan.changes, access.slurm.cluster)
        code = 1 if left or plan.drift else 0
        if self.as_json:
            self.print_json(
                {
                    "applied": [_change_document(each) for each in applied],
                    "changes": [_change_document(each) for each in left],
                    "drift": [_change_document(each) for each in plan.drift],
                    "left_out": [{"quota": each.quota, "why": each.reason} for each in plan.unenforced],
                    "commands": commands.splitlines(),
                }
            )
            return code
        for head, changes in (("written", applied), ("to be written", left), ("set by hand, kept", plan.drift)):
            if changes:
                rows = [
                    (c.entity.value, c.name, c.key, c.have or "-", c.want or "-", c.admin_level.value) for c in changes
                ]
                print(f"{head}:\n" + table(("", "name", "limit", "is", "policy", "takes"), rows) + "\n")
        if plan.unenforced:
            print("kept by the hub's own check alone:")
            print(
                "\n".join(f"  {each.quota + ': ' if each.quota else ''}{each.reason}" for each in plan.unenforced)
                + "\n"
            )
        if commands:
            print(f"for an administrator of Slurm to run, then mirror again:\n{commands}")
        if not code:
            print("Slurm's limits are as the policy wants them.")
        elif left and not self.apply:
            print("Nothing was changed; --apply writes what an Operator may write.")
        return code


def _change_document(change: Change) -> dict[str, Any]:
    return {
        **{"entity": change.entity.value, "name": change.name, "limit": change.key, "is": change.have},
        **{"policy": change.want, "takes": change.admin_level.value, "argv": list(change.argv)},
    }
