"""Forms of the account's page for transfers and corrections; the confirmation shows the balances."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from tornado.web import HTTPError

from carme_hub.domain.quotas.windows import moment_in
from carme_hub.domain.wording import day as format_day
from carme_hub.services.quotas.application import corrections, view
from carme_hub.services.quotas.pages.accounts import NAME
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.scopes import GRANT, READ_ALL

_HIDDEN = "not visible to you"


class BalanceFormHandler(PageHandler):
    """The base of both forms."""

    tab = "accounts"

    def known_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts in Slurm, None before Slurm has answered."""
        associations = self.service.associations
        return tuple(associations.accounts()) if associations.known else None

    async def balances(self, changes: dict[str, int]) -> list[dict[str, str]]:
        """Return what each account has left before and after; hidden for accounts that the visitor may not see."""
        found = await self.service.ledger.balances(list(changes))
        rows = []
        for name, change in changes.items():
            seen = name in self.owned_accounts or self.has_scope(READ_ALL, GRANT)
            left = found[name].left
            before, after = (view.hours(left), view.hours(left + change)) if seen else (_HIDDEN, _HIDDEN)
            rows.append({"name": name, "before": before, "after": after})
        return rows


class TransferHandler(BalanceFormHandler):
    """The form that moves GPU time to another account."""

    async def post(self, account: str) -> None:
        """Ask for confirmation with both balances, then move."""
        if account not in self.owned_accounts and not self.has_scope(GRANT):
            raise HTTPError(403, log_message="Only the account's owner or an administrator can move its GPU time.")
        self.tab = "accounts" if account in self.owned_accounts else "administration"
        target, amount = self.text("target", "The account that gets it", max_length=64), self.amount()
        reason, key = self.text("reason", "The reason"), self.key()
        known = self.known_accounts()
        if target == account:
            raise BadForm("Both accounts are the same. Name another one to move GPU time to.")
        if known is not None and target not in known:
            raise BadForm(f"There is no Slurm account {target}. Check its name.")
        back = f"accounts/{account}"
        if not self.confirmed:
            free = await self.service.ledger.movable(account)
            if amount > free:
                raise BadForm(
                    f"Account {account} has {view.hours(free)} that can be moved, and you asked for "
                    f"{view.hours(amount)}. Held GPU time and credits that expire cannot be moved."
                )
            points = [
                f"{view.hours(amount)} go from account {account} to account {target}.",
                f"Reason: {reason}",
            ]
            points.append("Both statements will show it. To undo it, the other account moves it back.")
            self.confirm(
                *("Move this GPU time?", points, f"Move {view.hours(amount)}"),
                back=back,
                balances=await self.balances({account: -amount, target: amount}),
            )
            return
        with self.refuse_used_key():
            await self.service.ledger.transfer(
                *(account, target, amount), key=key, actor=self.visitor.actor, reason=reason, accounts=known
            )
        self.log_write("moved %s milli-GPU-seconds from account %s to %s: %s", amount, account, target, reason)
        self.done(f"{view.hours(amount)} moved from account {account} to account {target}.", back)


class CorrectionHandler(BalanceFormHandler):
    """The form of a correction."""

    write_scopes = (GRANT,)

    async def post(self, account: str) -> None:
        """Ask for confirmation with the balance before and after, then write."""
        self.tab = "administration"
        amount, reason, key = self.amount(), self.text("reason", "The reason"), self.key()
        direction = self.text("direction", "Whether GPU time is added or taken", max_length=10)
        if direction not in ("add", "take"):
            raise BadForm("Say whether GPU time is added or taken.")
        signed = amount if direction == "add" else -amount
        user = self.text("user", "The user", max_length=64, required=False)
        day_text = self.text("day", "The day of the use", max_length=10, required=False)
        used_at = self._moment(day_text) if day_text else 0.0
        await corrections.check(self.service, account, user, used_at)
        back = f"accounts/{account}"
        if not self.confirmed:
            what = f"{view.hours(amount)} are {'added to' if signed > 0 else 'taken from'} account {account}"
            points = [f"{what}{f', on the statement of {user}' if user else ''}.", f"Reason: {reason}"]
            if used_at:
                day = format_day(datetime.fromtimestamp(used_at, ZoneInfo(self.zone)))
                more = "less" if signed > 0 else "more"
                points.append(f"It counts as {more} use on {day}, in every limit of that day.")
            else:
                points.append("It changes the balance, and the use in no limit.")
            points.append("It stays in the statement; only another correction can undo it.")
            question, button = (
                "Write this correction?",
                f"{'Add' if signed > 0 else 'Take'} {view.hours(amount)}",
            )
            self.confirm(
                *(question, points, button),
                back=back,
                danger=signed < 0,
                balances=await self.balances({account: signed}),
                fixed={"moment": str(int(used_at))} if used_at else {},
            )
            return
        with self.refuse_used_key():
            await corrections.correct(
                *(self.service, account, signed),
                key=key,
                actor=self.visitor.actor,
                reason=reason,
                user=user,
                used_at=used_at,
            )
        self.log_write("corrected account %s by %s milli-GPU-seconds: %s", account, signed, reason)
        self.done(f"{view.hours(amount)} {'added to' if signed > 0 else 'taken from'} account {account}.", back)

    def _moment(self, text: str) -> float:
        """Return when the use took place; the confirmation sends it, so that two confirmations are the same write."""
        fixed = self.text("moment", "The moment of the use", max_length=12, required=False) if self.confirmed else ""
        try:
            day = date.fromisoformat(text)
            if not fixed:
                return moment_in(day, self.zone, self.now)
            if datetime.fromtimestamp(int(fixed), ZoneInfo(self.zone)).date() != day:
                raise ValueError("a moment of another day")
            return float(fixed)
        except (ValueError, OverflowError) as error:
            raise BadForm("The day of the use is a date up to today, such as 2026-11-21.") from error


PAGES: list[tuple[str, Any]] = [
    (f"accounts/{NAME}/transfers", TransferHandler),
    (f"accounts/{NAME}/corrections", CorrectionHandler),
]
