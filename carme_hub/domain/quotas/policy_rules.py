"""A site's own rules in addition to its policy: functions that can refuse what the policy grants. Pure.

Each is a function of one ``PolicyRequest`` that raises ``Refused`` to refuse. A setting names the rules
(``accounting.policy_rules``). They are called wherever the quotas are checked: at a start, an extension and a booking,
and in the form. A rule cannot grant what the quotas refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from carme_hub.errors import Refused

from .decision import Decision, Refusal
from .rules import Person, QuotaRequest


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A request on which a rule decides.

    Attributes:
        person: the user, with groups and roles. ask: account, GPUs, seconds, price factor.
        start, end: the requested time, in UTC epoch seconds. now: the time of the decision.
        kind: a new session, more time for one, or a booking. in_booking: the session is within a booking, which the
            rule has granted before.
        partition, qos: those of the session, "" for Slurm's default; a booking has none.
    """

    person: Person
    ask: QuotaRequest
    start: float
    end: float
    now: float
    kind: Literal["session", "extension", "booking"] = "session"
    in_booking: bool = False
    partition: str = ""
    qos: str = ""


#: Raises ``Refused`` with a sentence for the user; the returned value is ignored.
PolicyRule = Callable[[PolicyRequest], None]


def with_rules(decision: Decision, rules: Mapping[str, PolicyRule], request: PolicyRequest) -> Decision:
    """Return a decision on quotas with the refusals of these rules added; ``rules`` maps names to rules.

    After a refusal the largest request that would be granted is unknown, since a rule only says yes or no.
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
