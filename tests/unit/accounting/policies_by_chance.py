"""Policies that are drawn by chance, and moments shortly before clocks, months and years change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.booking_rules import BookingRule
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window

#: Where and when a story begins. In Havana clocks change at midnight: one is skipped, another comes twice.
CLOCKS = tuple(
    (zone, datetime.fromisoformat(at).replace(tzinfo=ZoneInfo(zone)).timestamp())
    for zone, at in (
        ("Europe/Berlin", "2026-03-27T18:00"),
        ("Europe/Berlin", "2026-10-24T12:00"),
        ("Europe/Berlin", "2026-12-30T20:00"),
        ("America/Havana", "2026-03-07T12:00"),
        ("America/Havana", "2026-10-31T12:00"),
        ("Australia/Lord_Howe", "2026-04-04T12:00"),
        ("UTC", "2026-05-30T20:00"),
    )
)
_WHOSE = (
    (SubjectKind.USER, "*", False),
    (SubjectKind.USER, "ada", False),
    (SubjectKind.ACCOUNT, "*", False),
    (SubjectKind.ACCOUNT, "physics", False),
    (SubjectKind.GROUP, "course", True),
    (SubjectKind.GROUP, "lab", True),
    (SubjectKind.GROUP, "*", False),
    (SubjectKind.ROLE, "staff", True),
    (SubjectKind.ROLE, "staff", False),
)


def _gpu_time(window: Window) -> st.SearchStrategy[dict[str, object]]:
    soft = st.booleans().flatmap(lambda soft: st.just({"soft": soft, "soft_qos": "low" if soft else ""}))
    amount = st.integers(1, 60).map(lambda n: n * GPU_HOUR // 2) | st.integers(1, 20 * GPU_HOUR)
    days = st.integers(1, 3) if window is Window.ROLLING else st.just(0)
    return st.tuples(amount, days, st.integers(0, 40), st.integers(1, 60), soft).map(
        lambda drawn: {
            "gpu_time": drawn[0],
            "window": window,
            "days": drawn[1],
            "start": drawn[2] * 3600,  # from when the story begins
            "end": (drawn[2] + drawn[3]) * 3600,
            **drawn[4],
        }
    )


_OTHERS = st.one_of(
    st.fixed_dictionaries({"concurrent_gpus": st.integers(1, 6)}),
    st.fixed_dictionaries({"session_gpus": st.integers(1, 4)}),
    st.fixed_dictionaries({"sessions": st.integers(1, 4)}),
    st.fixed_dictionaries({"sessions_per_day": st.integers(1, 5)}),
    st.fixed_dictionaries({"time_limit": st.integers(1, 60).map(lambda n: n * 1800)}),
    st.fixed_dictionaries({"gpu_types": st.sampled_from((("a100",), ("t4",), ()))}),
    st.fixed_dictionaries({"may_extend": st.booleans()}),
    st.fixed_dictionaries({"booking": st.just(BookingRule(length=60, at_once=0))}),  # nothing to sessions
)
#: GPU time is what most is to be said about; a number is drawn first, since choices in choices count as one.
_LIMITS = st.integers(0, 3).flatmap(lambda n: st.sampled_from(Window).flatmap(_gpu_time) if n else _OTHERS)


def policies() -> st.SearchStrategy[Callable[[float], list[Quota]]]:
    """Draw what returns the rules of a story that begins at a moment."""
    rules = st.lists(st.tuples(st.sampled_from(_WHOSE), _LIMITS), min_size=2, max_size=6)
    return st.tuples(rules, st.booleans()).map(lambda drawn: lambda first: _rules(drawn[0], drawn[1], first))


def _rules(
    drawn: list[tuple[tuple[SubjectKind, str, bool], dict[str, object]]], granted: bool, first: float
) -> list[Quota]:
    rules = [Quota("grants", SubjectKind.ACCOUNT, needs_grant=True)] if granted else []
    for number, ((who, name, together), limits) in enumerate(drawn):
        values = {**limits}
        if values.get("window") is Window.TERM:
            values |= {edge: first + values[edge] for edge in ("start", "end")}  # type: ignore[operator]
        else:
            values.pop("start", None)
            values.pop("end", None)
        rules.append(Quota(f"q{number}", who, name, together, **values))  # type: ignore[arg-type]
    return rules
