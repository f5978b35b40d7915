"""Laws of decisions, against an oracle that only adds and compares."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.decision import decide
from carme_hub.domain.quotas.rules import (
    AppliedQuota,
    Facts,
    Quota,
    QuotaRequest,
    SubjectKind,
    SubjectUsage,
    Window,
    allowed,
)

NOW = 1_800_000_000.0
SUBJECTS = ("ada", "students", "nlp")
TYPES = ("a100", "t4")
QUARTER = 900


def maybe(most: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, most)


@st.composite
def rules(draw: st.DrawFn) -> tuple[AppliedQuota, ...]:
    return tuple(
        AppliedQuota(
            Quota(
                f"q{n}",
                draw(st.sampled_from(SubjectKind)),
                together=draw(st.booleans()),
                gpu_time=draw(maybe(30 * 3_600_000)),
                window=draw(st.sampled_from(Window)),
                days=draw(st.integers(1, 30)),
                start=NOW - draw(st.integers(-10, 10)),
                end=NOW + draw(st.integers(-10, 10)),
                soft=draw(st.booleans()),
                soft_qos="low",
                concurrent_gpus=draw(maybe(8)),
                session_gpus=draw(maybe(6)),
                sessions=draw(maybe(3)),
                sessions_per_day=draw(maybe(3)),
                time_limit=draw(maybe(8 * 3600)),
                gpu_types=draw(st.none() | st.lists(st.sampled_from(TYPES), max_size=2, unique=True).map(tuple)),
                needs_grant=draw(st.booleans()),
                may_extend=draw(st.none() | st.booleans()),
            ),
            draw(st.sampled_from(SUBJECTS)),
        )
        for n in range(draw(st.integers(0, 4)))
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[AppliedQuota, ...], QuotaRequest, Facts]:
    applied = draw(rules())
    days = st.integers(-100_000, 0).map(lambda s: NOW + s)
    ends = st.tuples(st.integers(1, 10**6).map(lambda s: NOW + s), st.integers(0, 4))
    use = {
        (one.quota.id, one.subject): SubjectUsage(
            gpu_time=draw(st.integers(0, 20 * 3_600_000)),
            frees_at=draw(st.sampled_from([0.0, NOW + 3600])),
            gpus=draw(st.integers(0, 6)),
            sessions=draw(st.integers(0, 3)),
            started=tuple(draw(st.lists(days, max_size=3))),
            ends=tuple(draw(st.lists(ends, max_size=4))),
        )
        for one in applied
        if draw(st.booleans())
    }
    count = draw(st.integers(0, 6))
    ask = QuotaRequest(
        "nlp",
        Gpus(draw(st.sampled_from(TYPES)) if count else "", count),
        draw(st.integers(1, 6 * 3600)),
        draw(st.sampled_from([0, 500, 1000, 1500])),
        draw(st.sampled_from([0, 0, 3600])),
    )
    left = draw(st.integers(-3_600_000, 40 * 3_600_000))
    return applied, ask, Facts(NOW, use, {"nlp": left})


def holds(applied: tuple[AppliedQuota, ...], ask: QuotaRequest, facts: Facts) -> bool:
    """The oracle: every limit by itself, as an administrator would check it with pencil and paper."""
    gpus, cost = ask.gpus.count, ask.gpus.count * ask.seconds * ask.factor
    for one in applied:
        q, use = one.quota, facts.use.get((one.quota.id, one.subject), SubjectUsage())
        if q.window is Window.TERM and not q.start <= NOW < q.end:
            continue
        if q.gpu_time is not None and not q.soft and cost and use.gpu_time + cost > q.gpu_time:
            return False
        if q.needs_grant and cost and cost > facts.left["nlp"]:
            return False
        if q.session_gpus is not None and gpus > q.session_gpus:
            return False
        if q.gpu_types is not None and gpus and ask.gpus.type not in q.gpu_types:
            return False
        if q.time_limit is not None and ask.already_held + ask.seconds > q.time_limit:
            return False
        if ask.already_held:
            if q.may_extend is False:
                return False
            continue
        if q.concurrent_gpus is not None and gpus and use.gpus + gpus > q.concurrent_gpus:
            return False
        if q.sessions is not None and use.sessions + 1 > q.sessions:
            return False
        lately = len([t for t in use.started if NOW - t < 86400])
        if q.sessions_per_day is not None and lately + 1 > q.sessions_per_day:
            return False
    return True


def grid(ask: QuotaRequest) -> list[QuotaRequest]:
    """Everything that is searched: fewer GPUs of the type, and quarters of an hour up to what was asked."""
    counts = [ask.gpus.count] if ask.already_held or not ask.gpus else range(1, ask.gpus.count + 1)
    times = {*range(QUARTER, ask.seconds, QUARTER), ask.seconds}
    return [replace(ask, gpus=replace(ask.gpus, count=c), seconds=s) for c in counts for s in times]


@given(cases())
def test_granted_means_that_every_limit_holds(case: tuple[tuple[AppliedQuota, ...], QuotaRequest, Facts]) -> None:
    decision = decide(*case, zone="UTC")
    event(f"granted {decision.granted}")
    assert decision.granted == allowed(*case) == holds(*case)


@given(cases())
def test_the_largest_is_granted_and_nothing_larger_is(
    case: tuple[tuple[AppliedQuota, ...], QuotaRequest, Facts],
) -> None:
    applied, ask, facts = case
    largest = decide(applied, ask, facts, zone="UTC").largest
    granted = [one for one in grid(ask) if holds(applied, one, facts)]
    event(f"{'none' if largest is None else 'all' if largest == ask else 'smaller'}")
    if largest is None:
        assert granted == []
    else:
        assert holds(applied, largest, facts)
        key = max((a.gpus.count * a.seconds, a.gpus.count, a.seconds) for a in granted)
        assert (largest.gpus.count * largest.seconds, largest.gpus.count, largest.seconds) == key


@given(cases(), st.data())
def test_asking_less_never_turns_granted_into_refused(
    case: tuple[tuple[AppliedQuota, ...], QuotaRequest, Facts], data: st.DataObject
) -> None:
    applied, ask, facts = case
    less = replace(
        ask,
        gpus=replace(ask.gpus, count=data.draw(st.integers(0, ask.gpus.count))),
        seconds=data.draw(st.integers(0, ask.seconds)),
        factor=data.draw(st.integers(0, ask.factor)),
    )
    if decide(applied, ask, facts, zone="UTC").granted:
        assert decide(applied, less, facts, zone="UTC").granted


@given(cases())
def test_refusals_stand_from_the_one_that_allows_least(
    case: tuple[tuple[AppliedQuota, ...], QuotaRequest, Facts],
) -> None:
    applied, ask, facts = case
    timed = [AppliedQuota(Quota(a.quota.id, a.quota.who, gpu_time=a.quota.gpu_time or 0), a.subject) for a in applied]
    refusals = decide(timed, ask, facts, zone="UTC").refusals
    room = {
        a.quota.id: (a.quota.gpu_time or 0) - facts.use.get((a.quota.id, a.subject), SubjectUsage()).gpu_time
        for a in timed
    }
    rooms = [max(0, room[refusal.quota]) for refusal in refusals]
    assert rooms == sorted(rooms)
    assert all(refusal.possible_at == 0 or refusal.possible_at > NOW for refusal in refusals)


@given(cases())
def test_a_soft_limit_alone_never_refuses(case: tuple[tuple[AppliedQuota, ...], QuotaRequest, Facts]) -> None:
    applied, ask, facts = case
    soft = [
        AppliedQuota(Quota(a.quota.id, a.quota.who, gpu_time=a.quota.gpu_time, soft=True), a.subject) for a in applied
    ]
    assert decide(soft, ask, facts, zone="UTC").granted
