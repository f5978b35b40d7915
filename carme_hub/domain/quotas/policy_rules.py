"""Rules of a site beside its policy: functions that may refuse what the policy grants, and grant nothing. Pure.

Each is a function of one ``PolicyRequest`` that raises ``Refused``. Which there are is a setting
(``accounting.policy_rules``); they are asked where the quotas are: at a start, an extension and a booking, and in the
form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from carme_hub.errors import Refused

from .decision import Decision, Refusal
from .rules import Ask, Person


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """What a rule is asked about.

    Attributes:
        person: who asks: user, groups, roles. ask: account, GPUs, seconds, price factor.
        start, end: when it would be, in UTC epoch seconds. now: the time at which it is asked.
        kind: a new session, more time for one, or a booking. in_booking: a session within a booking, which the rule was
            asked about when that was made.
        partition, qos: as the session names them, "" for Slurm's default; a booking names none.
    """

    person: Person
    ask: Ask
    start: float
    end: float
    now: float
    kind: Literal["session", "extension", "booking"] = "session"
    in_booking: bool = False
    partition: str = ""
    qos: str = ""


#: Raises ``Refused`` with a sentence for the user; what it returns means nothing.
PolicyRule = Callable[[PolicyRequest], None]


def with_rules(decision: Decision, rules: Mapping[str, PolicyRule], request: PolicyRequest) -> Decision:
    """Return a decision on quotas with what these rules say, by name; they can only refuse.

    The largest request that would be granted is then unknown, since a rule says no more than yes or no.
    """
    refusals = []
    for name, rule in rules.items():
        try:
            rule(request)
        except Refused as error:
            refusals.append(Refusal(name, "policy-rule", error.message))
    if not refusals:
        return decision
    return replace(decision, refusals=(*decision.refusals, *refusals), largest=None)
