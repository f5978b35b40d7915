"""GPU time that is moved to another account, or put right: forms of the account's page, confirmed with balances."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from tornado.web import HTTPError

from carme_hub.domain.quotas.windows import moment_in
from carme_hub.domain.wording import day as day_words
from carme_hub.services.quotas.application import corrections, view
from carme_hub.services.quotas.pages.accounts import NAME
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.scopes import GRANT, READ_ALL

_NOT_YOURS = "not yours to see"


class MoveHandler(PageHandler):
    """What both forms have in common."""

    tab = "accounts"

    def known_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts that exist, None while Slurm has not said."""
        book = self.service.book
        return tuple(book.accounts()) if book.known else None

    async def balances(self, changes: dict[str, int]) -> list[dict[str, str]]:
        """Return what each account has left before and after; of others' accounts nothing is told."""
        found = await self.service.ledger.balances(list(changes))
        rows = []
        for name, change in changes.items():
            seen = name in self.owned or self.may(READ_ALL, GRANT)
            left = found[name].left
            before, after = (view.hours(left), view.hours(left + change)) if seen else (_NOT_YOURS, _NOT_YOURS)
            rows.append({"name": name, "before": before, "after": after})
        return rows


class TransferHandler(MoveHandler):
    """The form that moves GPU time to another account."""

    async def post(self, account: str) -> None:
        """Ask once more with both balances, then move."""
        if account not in self.owned and not self.may(GRANT):
            raise HTTPError(403, log_message="GPU time is moved by the owner of the account that gives, or by an "
                                             "administrator.")  # fmt: skip
        self.tab = "accounts" if account in self.owned else "administration"
        target, amount = self.text("target", "The account that gets it", most=64), self.amount()
        reason, key = self.text("reason", "The reason"), self.key()
        known = self.known_accounts()
        if target == account:
            raise BadForm("Both accounts are the same. Name another one to move GPU time to.")
        if known is not None and target not in known:
            raise BadForm(f"There is no Slurm account {target}. Look at its name again.")
        back = f"accounts/{account}"
        if not self.confirmed:
            free = await self.service.ledger.movable(account)
            if amount > free:
                raise BadForm(
                    f"{view.hours(free)} of account {account} can be moved, and {view.hours(amount)} were asked for. "
                    "What is held, and credits that expire, stay where they are."
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
        with self.once():
            await self.service.ledger.transfer(
                *(account, target, amount), key=key, actor=self.visitor.actor, reason=reason, accounts=known
            )
        self.log_write("moved %s milli-GPU-seconds from account %s to %s: %s", amount, account, target, reason)
        self.done(f"{view.hours(amount)} moved from account {account} to account {target}.", back)


class CorrectHandler(MoveHandler):
    """The form that puts a mistake right."""

    writes = (GRANT,)

    async def post(self, account: str) -> None:
        """Ask once more with the balance before and after, then write."""
        self.tab = "administration"
        amount, reason, key = self.amount(), self.text("reason", "The reason"), self.key()
        direction = self.text("direction", "Whether GPU time is added or taken", most=10)
        if direction not in ("add", "take"):
            raise BadForm("Say whether GPU time is added or taken.")
        signed = amount if direction == "add" else -amount
        user = self.text("user", "The user", most=64, needed=False)
        said = self.text("day", "The day of the use", most=10, needed=False)
        used_at = self._moment(said) if said else 0.0
        await corrections.check(self.service, account, user, used_at)
        back = f"accounts/{account}"
        if not self.confirmed:
            what = f"{view.hours(amount)} are {'added to' if signed > 0 else 'taken from'} account {account}"
            points = [f"{what}{f', on the statement of {user}' if user else ''}.", f"Reason: {reason}"]
            if used_at:
                day = day_words(datetime.fromtimestamp(used_at, ZoneInfo(self.zone)))
                more = "less" if signed > 0 else "more"
                points.append(f"It counts as {more} use on {day}, in every limit of that day.")
            else:
                points.append("It changes the balance, and the use in no limit.")
            points.append("It stays in the statement; only another correction puts it right.")
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
        with self.once():
            await corrections.correct(
                *(self.service, account, signed),
                key=key,
                actor=self.visitor.actor,
                reason=reason,
                user=user,
                used_at=used_at,
            )
        self.log_write("corrected account %s by %s milli-GPU-seconds: %s", account, signed, reason)
        did = f"{view.hours(amount)} {'added to' if signed > 0 else 'taken from'} account {account}."
        self.done(did, back)

    def _moment(self, text: str) -> float:
        """Return when the use took place; the page that asks once more fixes it, so that "yes" twice is the same."""
        fixed = self.text("moment", "The moment of the use", most=12, needed=False) if self.confirmed else ""
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
    (f"accounts/{NAME}/corrections", CorrectHandler),
]
