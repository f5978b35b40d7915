"""``carme-hub quotas grant | transfer | correct``: write to the ledger. The same ``--key`` writes once."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

from traitlets import Bool, Unicode

from carme_hub.cli.base import ConfiguredApp, UsageError, actor, new_key, positional_arguments
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.windows import moment_in
from carme_hub.errors import SlurmError

from .ledger_access import LedgerAccess, hours, open_ledger, read_amount, read_time


class _LedgerWriteApp(ConfiguredApp):
    """A command that writes to the ledger."""

    reason = Unicode("", help="Why; the statement shows it. Required.").tag(config=True)
    key = Unicode(
        "",
        help="""Idempotency key: a second call with the same key writes nothing. The default is a new one; give one in
        scripts, such as ``--key 2026-10-teaching``.""",
    ).tag(config=True)
    no_check = Bool(False, help="Do not ask Slurm whether the account exists; required for one without users.").tag(
        config=True
    )

    aliases: Any = {**ConfiguredApp.aliases, "reason": "_LedgerWriteApp.reason", "key": "_LedgerWriteApp.key"}
    flags: Any = {
        **ConfiguredApp.flags,
        "no-check": (
            {"_LedgerWriteApp": {"no_check": True}},
            "Do not ask Slurm whether the account exists; required for one without users.",
        ),
    }

    def required_reason(self) -> str:
        """Return the reason, which readers of the statement need; raise ``UsageError`` where it is missing."""
        if not self.reason.strip():
            raise UsageError("give a reason with --reason")
        return self.reason.strip()

    async def accounts(self, access: LedgerAccess) -> set[str] | None:
        """Return the accounts that exist in Slurm, None with ``--no-check``."""
        if self.no_check:
            return None
        try:
            return {each.account for each in await access.associations(self)}
        except SlurmError as error:
            raise UsageError(
                f"Slurm does not answer which accounts exist; --no-check skips this check. {error}"
            ) from error

    async def print_balances(self, access: LedgerAccess, entries: list[Entry], message: str) -> int:
        """Print what was written, and what each account has left."""
        balances = await access.ledger.balances([entry.account for entry in entries])
        if self.as_json:
            written = [
                {"id": e.id, "key": e.key, "account": e.account, "amount": e.amount, "left": balances[e.account].left}
                for e in entries
            ]
            self.print_json({"entries": written})
            return 0
        print(message)
        for account, balance in balances.items():
            print(f"{account} has {hours(balance.left)} GPU-hours left")
        return 0


class GrantApp(_LedgerWriteApp):
    """Give an account GPU time."""

    name = "carme-hub quotas grant"
    description = """Give an account GPU time: carme-hub quotas grant ACCOUNT AMOUNT --reason "…". The amount is
    GPU-hours ("100h", "1.5") or has its unit ("90 min"). With --expires it is a credit: what is left of it at that time
    expires."""
    examples = 'carme-hub quotas grant physics 100h --reason "Winter term" --expires 2027-03-31'

    user = Unicode("", help="The user whom the statement names. The default is the account as a whole.").tag(
        config=True
    )
    expires = Unicode(
        "", help="Last day (or time) on which it can be used, in the policy's zone. By default it does not expire."
    ).tag(config=True)
    aliases = {**_LedgerWriteApp.aliases, "user": "GrantApp.user", "expires": "GrantApp.expires"}

    async def work(self) -> int:
        """Write it."""
        account, amount = positional_arguments(self, "ACCOUNT", "AMOUNT")
        async with open_ledger(self) as access:
            entry = await access.ledger.grant(
                account,
                read_amount(amount),
                key=new_key(self.key),
                actor=actor(),
                reason=self.required_reason(),
                user=self.user,
                expires=read_time(self.expires, access.zone, after=1) if self.expires else 0.0,
                accounts=await self.accounts(access),
            )
            until = f" until {access.when(entry.expires)} ({access.zone})" if entry.expires else ""
            return await self.print_balances(
                access, [entry], f"granted {hours(entry.amount)} GPU-hours to {account}{until}"
            )


class TransferApp(_LedgerWriteApp):
    """Move GPU time from one account to another."""

    name = "carme-hub quotas transfer"
    description = """Move GPU time that does not expire: carme-hub quotas transfer FROM TO AMOUNT --reason "…"."""
    examples = 'carme-hub quotas transfer physics teaching 20h --reason "Lab course"'

    async def work(self) -> int:
        """Move it."""
        source, target, amount = positional_arguments(self, "FROM", "TO", "AMOUNT")
        async with open_ledger(self) as access:
            await access.load_open_jobs(self)
            out, into = await access.ledger.transfer(
                source,
                target,
                read_amount(amount),
                key=new_key(self.key),
                actor=actor(),
                reason=self.required_reason(),
                accounts=await self.accounts(access),
            )
            moved = f"moved {hours(into.amount)} GPU-hours from {source} to {target}"
            return await self.print_balances(access, [out, into], moved)


class CorrectApp(_LedgerWriteApp):
    """Correct a mistake."""

    name = "carme-hub quotas correct"
    description = """Correct a mistake: add to an account's balance, or take from it with --take, for example after a
    grant that was too large: carme-hub quotas correct ACCOUNT AMOUNT --reason "…"."""
    examples = 'carme-hub quotas correct physics 900h --take --reason "1000h was meant to be 100h"'

    user = Unicode("", help="The user whose statement shows it. The default is none.").tag(config=True)
    used_at = Unicode(
        "",
        help="""When the corrected use took place: the correction counts in the windows of that moment. By default it
        changes the balance and no window.""",
    ).tag(config=True)
    take = Bool(False, help="Take from the balance in place of adding to it.").tag(config=True)
    aliases = {**_LedgerWriteApp.aliases, "user": "CorrectApp.user", "used-at": "CorrectApp.used_at"}
    flags = {
        **_LedgerWriteApp.flags,
        "take": ({"CorrectApp": {"take": True}}, "Take from the balance in place of adding to it."),
    }

    async def work(self) -> int:
        """Write it."""
        account, text = positional_arguments(self, "ACCOUNT", "AMOUNT")
        amount = read_amount(text)
        async with open_ledger(self) as access:
            entry = await access.ledger.correct(
                account,
                -amount if self.take else amount,
                key=new_key(self.key),
                actor=actor(),
                reason=self.required_reason(),
                user=self.user,
                used_at=self._used_at(access),
                accounts=await self.accounts(access),
            )
            did = (
                f"took {hours(-entry.amount)} GPU-hours from"
                if self.take
                else f"gave {hours(entry.amount)} GPU-hours to"
            )
            return await self.print_balances(access, [entry], f"{did} {account}")

    def _used_at(self, access: LedgerAccess) -> float:
        """Return when the use took place; for a day, a moment within it."""
        if not self.used_at:
            return 0.0
        moment, now = read_time(self.used_at, access.zone), time.time()
        if len(self.used_at) == 10:
            moment = moment_in(date.fromisoformat(self.used_at), access.zone, now)
        if moment > now:
            raise UsageError(f"{self.used_at} is in the future; give the time at which the use took place")
        return moment
