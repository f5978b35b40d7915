"""A counter of refusals by admission, by reason and by the kind of rule, among the hub's own metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter

from carme_hub.domain.quotas.decision import Refusal
from carme_hub.domain.quotas.rules import Quota, SubjectKind

#: Reasons of refusals by a rule of the policy, and reasons without a rule.
OF_RULES = (
    *("gpu-time", "concurrent-gpus", "session-gpus", "sessions", "sessions-per-day"),
    *("time-limit", "gpu-types", "needs-grant", "may-extend"),
)
OF_NO_RULE = ("quotas-service-down", "no-account", "other")
#: Label values for the kind of rule; ids of rules or user names would be too many.
KINDS = tuple(who.value for who in SubjectKind)
NO_RULE = "none"

REFUSED = Counter(
    "carme_quotas_refused",
    "Starts and longer times of sessions that admission refused, by the reason of the tightest rule and whose it is",
    ("reason", "rule"),
)
for _reason in OF_RULES:
    for _kind in KINDS:
        REFUSED.labels(_reason, _kind)  # creates the series before the first refusal, so that an alert can use it
for _reason in OF_NO_RULE:
    REFUSED.labels(_reason, NO_RULE)


def count(refusal: Refusal, quotas: Iterable[Quota]) -> None:
    """Count a refusal by a rule of the policy."""
    kinds = {quota.id: quota.who.value for quota in quotas}
    reason = refusal.reason if refusal.reason in OF_RULES else "other"
    kind = kinds.get(refusal.quota, NO_RULE)
    REFUSED.labels(reason, kind).inc()


def count_other(reason: str) -> None:
    """Count a refusal without a single rule."""
    REFUSED.labels(reason if reason in (*OF_RULES, *OF_NO_RULE) else "other", NO_RULE).inc()
