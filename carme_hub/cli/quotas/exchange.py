"""``carme-hub quotas import | export``: quotas and accounts from a file or from Slurm's limits, and out again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from traitlets import Bool, Unicode

from carme_hub.accounting.slurm_limits import MIRRORED
from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, actor, positional_arguments, table
from carme_hub.domain.quotas.exchange.from_slurm import rows_of_slurm
from carme_hub.domain.quotas.exchange.rows import AccountRow, BadRows, Wanted, merged, read_rows, rows_of
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import State
from carme_hub.errors import Refused, SlurmError
from carme_hub.services.quotas.application.policies import activate, changed_lines, current_policy, policy_text
from carme_hub.slurm.limits import LimitsWriter
from carme_hub.store.threads import in_store_thread

from .ledger_access import LedgerAccess, hours, open_ledger
from .quota_file import as_csv, problems_text, read_quota_file


@dataclass(frozen=True, slots=True)
class _Grant:
    """An account's grants: what they are, and what is wanted (milli-GPU-seconds)."""

    account: str
    have: int
    want: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """What an import would do.

    Attributes:
        before, after: the policy as text. stamp: of the policy that was read. grants: those that differ.
        commands: for an administrator of Slurm, since accounts or users are missing there.
        notes: what is not imported, as sentences.
    """

    before: str
    after: str
    stamp: str
    grants: Sequence[_Grant]
    commands: Sequence[Sequence[str]]
    notes: Sequence[str]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.before == self.after and not self.grants


class ImportApp(ConfiguredApp):
    """Take quotas and accounts from a file, or from Slurm's limits."""

    name = "carme-hub quotas import"
    description = """Take quotas and grants of accounts from a file (CSV, JSON or YAML), or with --from-slurm the limits
    that Slurm has: carme-hub quotas import FILE. What would change is shown, and you are asked; --dry-run only shows
    it. Quotas go into CarmeQuotas.policy_file: those with a known id are replaced, new ones are added. Granted GPU time
    is brought to the amount in the file by one entry of the ledger. The same file again changes nothing. Accounts and
    users that Slurm does not have are printed as commands. A file with an error changes nothing; each error names its
    line. Exits with 1 while something is to be done."""
    examples = """carme-hub quotas import quotas.csv --dry-run
    carme-hub quotas import --from-slurm
    carme-hub quotas import quotas.json --reason "Allocations of 2027" --yes"""

    from_slurm = Bool(False, help="Take the limits that Slurm has on accounts and users, in place of a file.").tag(
        config=True
    )
    dry_run = Bool(False, help="Show what would change; write nothing.").tag(config=True)
    replace_quotas = Bool(
        False, help="Remove quotas of the policy that the file does not have. By default they stay."
    ).tag(config=True)
    no_check = Bool(False, help="Do not ask Slurm which accounts and users exist.").tag(config=True)
    reason = Unicode("", help="Why; the statement and the policy's history show it. The default names the file.").tag(
        config=True
    )
    aliases: Any = {**ConfiguredApp.aliases, "reason": "ImportApp.reason"}
    flags: Any = {
        **ConfiguredApp.flags,
        **YES_FLAG,
        "from-slurm": ({"ImportApp": {"from_slurm": True}}, "Take the limits that Slurm has."),
        "dry-run": ({"ImportApp": {"dry_run": True}}, "Show what would change; write nothing."),
        "replace": ({"ImportApp": {"replace_quotas": True}}, "Remove quotas that the file does not have."),
        "no-check": ({"ImportApp": {"no_check": True}}, "Do not ask Slurm which accounts and users exist."),
    }

    async def work(self) -> int:
        """Show what would change, ask, and write it."""
        source = "Slurm's limits" if self.from_slurm else positional_arguments(self, "FILE")[0]
        if self.from_slurm:
            positional_arguments(self)
        if self.from_slurm and self.no_check:
            raise UsageError("--from-slurm asks Slurm; leave out --no-check")
        async with open_ledger(self) as access:
            state = None if self.no_check else await self._state(access)
            wanted, notes = await self._wanted(access, source, state)
            plan = await self._plan(access, wanted, state, notes)
            if not self.as_json:
                self._print(plan)
            if plan.is_empty or self.dry_run:
                return self._end(plan, done=False)
            if plan.before != plan.after and (fixed := current_policy(access).fixed):
                raise Refused(fixed, reason="not-editable")
            self.confirm("Write this?")
            await self._write(access, plan, self.reason.strip() or f"imported from {source}")
        return self._end(plan, done=True)

    async def _state(self, access: LedgerAccess) -> State:
        writer = LimitsWriter(access.slurm.commands(), access.slurm.cluster)
        try:
            return await self.with_progress("reading Slurm's limits", writer.state())
        except SlurmError as error:
            hint = "" if self.from_slurm else " --no-check skips the check of accounts."
            raise UsageError(f"Slurm does not answer, so nothing was changed.{hint} {error}") from error

    async def _wanted(self, access: LedgerAccess, source: str, state: State | None) -> tuple[Wanted, Sequence[str]]:
        if not self.from_slurm:
            try:
                return read_rows(read_quota_file(Path(source)), access.zone), ()
            except BadRows as error:
                raise UsageError(f"nothing was changed:\n{problems_text(source, error)}") from error
        assert state is not None, "it was asked"  # noqa: S101
        note = await access.ledger.note(MIRRORED)
        found = rows_of_slurm(state, note.value["written"] if note else {})
        return read_rows(found.rows, access.zone), found.left_out

    async def _plan(self, access: LedgerAccess, wanted: Wanted, state: State | None, notes: Sequence[str]) -> _Plan:
        policy, now = access.policy(), await in_store_thread(current_policy, access)
        if now.problem:
            raise Refused(f"The policy file has an error, so it cannot be changed: {now.problem}", reason="bad-policy")
        quotas = merged(policy, wanted.quotas, replace=self.replace_quotas)
        after = policy_text(replace(policy, quotas=quotas)) if quotas != policy.quotas else now.text
        rows = [row for row in wanted.accounts if row.granted is not None]
        have = await access.ledger.granted_for_good([row.account for row in rows])
        missing = _missing_accounts(wanted.accounts, state)
        waiting = [row.account for row in rows if row.account in missing and have[row.account] != row.granted]
        more = [f"{name} gets its GPU time when Slurm has the account: import the file again." for name in waiting]
        grants = [
            _Grant(row.account, have[row.account], row.granted or 0)
            for row in rows
            if have[row.account] != row.granted and row.account not in missing
        ]
        commands = _commands(wanted.accounts, state, access.slurm.cluster)
        return _Plan(now.text, after, now.stamp, grants, commands, (*notes, *more))

    async def _write(self, access: LedgerAccess, plan: _Plan, reason: str) -> None:
        # Grants first: a rule that needs one would refuse everybody until then.
        for grant in plan.grants:
            more = {"key": f"import-{uuid4()}", "actor": actor(), "reason": reason}
            await access.ledger.set_granted(grant.account, grant.want, **more)
        if plan.before != plan.after:
            await activate(access, plan.after, stamp=plan.stamp, actor=actor(), reason=reason)

    # -- text ---------------------------------------------------------------------------------------------------------

    def _print(self, plan: _Plan) -> None:
        if plan.before != plan.after:
            print("the policy:")
            print("\n".join(f"{sign} {line}" for sign, line in changed_lines(plan.before, plan.after)))
        if plan.grants:
            rows = [
                (one.account, hours(one.have), hours(one.want), _signed(one.want - one.have)) for one in plan.grants
            ]
            print("granted, in GPU-hours:\n" + table(("account", "is", "file", "entry"), rows, "is file entry"))
        for note in plan.notes:
            print(f"not imported: {note}" if self.from_slurm else note)
        if plan.commands:
            print("for an administrator of Slurm to run:")
            print("\n".join(shlex.join(argv) for argv in plan.commands))

    def _end(self, plan: _Plan, *, done: bool) -> int:
        """Print how it ended; return the exit status."""
        left = bool(plan.commands) or not (done or plan.is_empty)
        if self.as_json:
            lines = [f"{sign} {line}" for sign, line in changed_lines(plan.before, plan.after)]
            grants = [{"account": one.account, "is": one.have, "file": one.want} for one in plan.grants]
            commands = [list(argv) for argv in plan.commands]
            document = {"done": done, "policy": lines, "grants": grants, "commands": commands}
            self.print_json({**document, "notes": list(plan.notes)})
        elif done:
            print("It is written.")
        elif plan.is_empty:
            print("Nothing is to be changed.")
        else:
            print("Nothing was changed.")
        return 1 if left else 0


def _missing_accounts(rows: Sequence[AccountRow], state: State | None) -> set[str]:
    if state is None:
        return set()
    return {row.account for row in rows if (Entity.ACCOUNT, row.account) not in state.limits}


def _commands(rows: Sequence[AccountRow], state: State | None, cluster: str) -> list[tuple[str, ...]]:
    """Return the commands that make accounts and users which Slurm does not have."""
    if state is None:
        return []
    there = {"/".join(name.split("/")[:2]) for entity, name in state.limits if entity is Entity.USER}
    missing = _missing_accounts(rows, state)
    found: list[tuple[str, ...]] = []
    for row in rows:
        if row.account in missing:
            found.append(("sacctmgr", "-i", "add", "account", row.account, f"cluster={cluster}"))
        new = [user for user in row.users if f"{row.account}/{user}" not in there]
        if new:
            where = (f"account={row.account}", f"cluster={cluster}")
            found.append(("sacctmgr", "-i", "add", "user", ",".join(new), *where))
    return found


def _signed(amount: int) -> str:
    return f"+{hours(amount)}" if amount > 0 else hours(amount)


class ExportApp(ConfiguredApp):
    """Print accounts and quotas as CSV or JSON."""

    name = "carme-hub quotas export"
    description = """Print accounts (users, granted, used, held and left GPU-hours) and the policy's quotas as CSV, or
    with --json as JSON. carme-hub quotas import reads both. credits, used, held and left are for readers, and are not
    imported. Users of accounts are left out, with a note, while Slurm does not answer."""
    examples = """carme-hub quotas export > quotas.csv
    carme-hub quotas export --json > quotas.json"""

    flags: Any = {**ConfiguredApp.flags}

    async def work(self) -> int:
        """Print them."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            users: Mapping[str, set[str]] | None = None
            try:
                users = _users(await access.associations(self))
            except SlurmError as error:
                self.note(f"Slurm does not answer, so the users of accounts are left out: {error}")
            balances = await access.ledger.balances()
            lasting = await access.ledger.granted_for_good(balances)
            known = {name: (lasting[name], one.granted - lasting[name], one) for name, one in balances.items()}
            rows = rows_of(access.policy(), known, users)
        if self.as_json:
            self.print_json({"quotas": rows})
        else:
            print(as_csv(rows), end="")
        return 0


def _users(associations: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in associations:
        found.setdefault(each.account, set()).add(each.user)
    return found
