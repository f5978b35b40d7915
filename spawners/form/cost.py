"""The cost of a choice in the form: price, rest before and after, or the refusal and the largest possible choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from carme_hub.accounting.admission import QuotaStatus
from carme_hub.domain.quotas.decision import Decision
from carme_hub.domain.quotas.rules import QuotaRequest
from carme_hub.domain.wording import duration, gpu_hours, hours


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """The GPU time that a person may still use of one account, by the strictest rule.

    Attributes:
        text: "12.5 h left", "no limit". amount: milli-GPU-seconds, None without a limit or if it is unknown.
    """

    text: str
    amount: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the JSON for ``form.js`` and programs."""
        return {"left": self.amount, "said": self.text}


#: Used for every account while the database does not answer.
NOT_KNOWN = RemainingBudget("rest not known at the moment")


def left_of(quota_status: QuotaStatus, accounts: Iterable[str], now: float) -> dict[str, RemainingBudget]:
    """Return the rest of each account, from one quota status."""
    return {account: _left(quota_status.left(account, now)) for account in accounts}


def _left(amount: int | None) -> RemainingBudget:
    if amount is None:
        return RemainingBudget("no limit")
    some = max(0, amount)
    little = some and hours(some) == "0"
    return RemainingBudget(f"{some // 1000} s left" if little else f"{hours(some)} h left", some)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a choice, for the form and its REST.

    Attributes:
        sentence: shown beside the choice. state: "ok", "soft" (allowed with a warning) or "refused".
        amount: the hold in milli-GPU-seconds. left: the account's balance before it, None if it needs no grant.
        what, options: the largest choice that would be admitted if this one is refused; "" and None for none.
    """

    sentence: str
    state: str
    account: str
    amount: int
    left: int | None
    what: str = ""
    options: Mapping[str, str | int] | None = None

    def as_json(self) -> dict[str, object]:
        """Return the JSON for ``form.js`` and programs."""
        return {
            "sentence": self.sentence,
            "state": self.state,
            "account": self.account,
            "amount": self.amount,
            "left_before": self.left,
            "left_after": None if self.left is None else self.left - self.amount,
            "suggestion": {"what": self.what, "options": dict(self.options)} if self.options else None,
        }


def user_sentence(sentence: str, user: str, *, virtual: bool) -> str:
    """Return a policy's sentence with "You" for the reader's own name; a sandbox's GPUs are called virtual."""
    for verb in ("may", "should"):
        sentence = sentence.replace(f"User {user} {verb} ", f"You {verb} ", 1)
    return sentence.replace(" × ", " × virtual ") if virtual else sentence


def cost_of(
    ask: QuotaRequest, decision: Decision, quota_status: QuotaStatus, user: str, *, virtual: bool = False
) -> Cost:
    """Return the cost of a request, from the decision on it and the quota status."""
    quota_status = quota_status.of(ask.account)
    needs_grant = any(one.quota.needs_grant for one in quota_status.rules)
    left = quota_status.balances[ask.account].left if needs_grant else None
    if not decision.granted:
        largest = decision.largest
        what, options = "", None
        if largest is not None and largest.gpus and largest.seconds >= 60:
            what = user_sentence(f"{largest.gpus} for {duration(largest.seconds)}", user, virtual=virtual)
            options = {"gpus": largest.gpus.count, "time_minutes": largest.seconds // 60}
        return Cost(
            user_sentence(decision.message, user, virtual=virtual),
            "refused",
            ask.account,
            ask.amount,
            left,
            what,
            options,
        )
    parts = [
        f"Costs up to {gpu_hours(ask.amount)} of {ask.account}" if ask.amount else f"Free for account {ask.account}"
    ]
    if left is not None and ask.amount:
        parts.append(f"{hours(left)} left before, {hours(left - ask.amount)} after")
    for limit in quota_status.limits:
        if limit.rule.quota.gpu_time is not None and ask.amount:
            taken = limit.taken.used + limit.taken.held
            window = limit.rule.quota.window.value
            parts.append(f"{hours(max(0, limit.limit - taken))} of {hours(limit.limit)} left ({window})")
    sentence = "; ".join(parts) + "."
    if ask.amount:
        sentence += " What you do not use is given back."
    if decision.warnings:
        warnings = (user_sentence(warning, user, virtual=virtual) for warning in decision.warnings)
        return Cost(" ".join([*warnings, sentence]), "soft", ask.account, ask.amount, left)
    return Cost(sentence, "ok", ask.account, ask.amount, left)


def in_booking(cost: Cost) -> Cost:
    """Return the cost of a session in a booking: its GPU time is held already, so it adds nothing."""
    if cost.state != "ok":
        return cost
    return replace(cost, sentence=f"Its GPU time is already held of {cost.account}, for the booking.", amount=0)
