"""A replay says what a policy would have refused, for whom and how much, as a plain recount from scratch says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import event, given
from hypothesis import strategies as st

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import Policy, parse_policy
from carme_hub.domain.quotas.replay import Replay, ReplayLine, replay
from carme_hub.domain.quotas.rules import Facts, Person, QuotaRequest, SubjectUsage, Window, allowed, applicable
from carme_hub.domain.quotas.windows import overlap, span

HOUR = 3600
#: A Monday.
T = int(datetime(2026, 10, 5, tzinfo=UTC).timestamp())
PEOPLE = {"ada": Person("ada", frozenset({"students"})), "bob": Person("bob", frozenset({"students"}))}


def job(id: int, at: float, ran: float, *, limit: float = 4, gpus: int = 1, user: str = "ada", **more: object) -> Usage:
    """Make a job of ``nlp`` that was submitted and started ``at`` hours after T."""
    start = T + int(at * HOUR)
    usage = Usage(
        *(id, str(id), "x", user, "nlp", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(float(start), float(start), float(start + int(ran * HOUR)), (Gpus("a100", gpus),), "n1", int(limit * HOUR)),
    )
    return replace(usage, **more)  # type: ignore[arg-type]


def policy(**limits: object) -> Policy:
    return parse_policy({"quotas": [{"id": "q", "user": "*", **limits}]})


def played(policy: Policy, *jobs: Usage, **more: object) -> Replay:
    return replay(policy, jobs, PEOPLE, now=T + 40 * 86400, **more)  # type: ignore[arg-type]


def test_it_says_what_is_refused_for_whom_and_how_much() -> None:
    jobs = (job(1, 0, 4, limit=4), job(2, 5, 3, limit=4, gpus=2), job(3, 6, 1, limit=2), job(4, 7, 2, user="bob"))
    assert played(policy(gpu_time=8, window="week"), *jobs) == Replay(
        (
            ReplayLine(
                *("ada", "nlp", 3, 1, 0, 11 * GPU_HOUR, 5 * GPU_HOUR, T + 5 * HOUR),
                "User ada may use 8 GPU-hours a week; 4 are used or held, and this needs 8. "
                "Possible again on Monday 12 October at 00:00, or with at most 2 × a100 for 2 h now.",
            ),
            ReplayLine("bob", "nlp", 1, 0, 0, 2 * GPU_HOUR, 2 * GPU_HOUR),
        ),
        {"q": 1},
    )


def test_shards_use_gpu_time_at_their_price_and_are_no_gpus_to_rules_on_numbers() -> None:
    shards = replace(job(1, 0, 4), gpus=(Gpus("shard", 8),))
    price = {"shard": 250}
    cheap = lambda type, _partition, _qos: price.get(type, 1000)  # noqa: E731
    free = played(policy(session_gpus=1, concurrent_gpus=1, gpu_types=["a100"]), shards, job(2, 1, 1), factor=cheap)
    assert (free.total.refused, free.total.before) == (0, (4 * 2 + 1) * GPU_HOUR)
    tight = played(policy(gpu_time=7, window="week"), shards, factor=cheap)
    assert (tight.total.refused, tight.total.refused_amount) == (1, 8 * GPU_HOUR)
    assert played(policy(gpu_time=8, window="week"), shards, factor=cheap).total.refused == 0


def test_the_total_adds_up() -> None:
    out = played(policy(session_gpus=1), job(1, 0, 1, gpus=2), job(2, 1, 2), job(3, 2, 3, user="bob", gpus=2))
    total = out.total
    assert (total.jobs, total.refused, total.before, total.after) == (3, 2, 10 * GPU_HOUR, 2 * GPU_HOUR)
    assert total.refused_amount == 8 * GPU_HOUR
    assert [line.user for line in out.lines] == ["bob", "ada"]


def test_a_job_that_ends_early_makes_room_for_the_next() -> None:
    tight = policy(gpu_time=4, window="week")
    assert played(tight, job(1, 0, 1), job(2, 1, 3, limit=3)).total.refused == 0
    assert played(tight, job(1, 0, 2), job(2, 1, 3, limit=3)).total.refused == 1


def test_a_refused_job_makes_room_for_the_next() -> None:
    assert played(policy(sessions=1), job(1, 0, 2), job(2, 1, 9), job(3, 3, 1)).total.refused == 1


def test_a_new_week_begins_with_what_ran_in_it() -> None:
    sunday = 7 * 24 - 2
    jobs = (job(1, sunday, 4), job(2, 7 * 24 + 3, 2, limit=2), job(3, 7 * 24 + 3, 1, limit=1, user="bob"))
    assert played(policy(gpu_time=4, window="week"), *jobs).total.refused == 0
    assert played(policy(gpu_time=4, window="week"), *jobs, job(4, 7 * 24 + 6, 1, limit=1)).total.refused == 1


def test_a_group_shares_its_limits_by_its_members() -> None:
    together = parse_policy({"quotas": [{"id": "q", "group": "students", "together": True, "concurrent_gpus": 1}]})
    out = played(together, job(1, 0, 2), job(2, 1, 2, user="bob"), job(3, 1, 2, user="guest"))
    assert [(line.user, line.refused) for line in out.lines] == [("bob", 1), ("ada", 0), ("guest", 0)]


def test_jobs_from_before_fill_the_windows_and_are_in_no_line() -> None:
    jobs = (job(1, 0, 4, gpus=9), job(2, 5, 1))
    out = played(policy(gpu_time=8, window="week", session_gpus=4), *jobs, since=T + HOUR)
    assert out.total == ReplayLine("", "", 1, 1, 0, GPU_HOUR, 0)
    assert out.rules == {"q": 1}


def test_a_requeued_job_is_asked_once_and_charged_each_time() -> None:
    first, second = job(1, 0, 2), job(1, 3, 2)
    out = played(policy(gpu_time=4, window="week"), first, second, job(2, 6, 1, limit=1))
    assert (out.total.jobs, out.total.refused, out.total.before) == (2, 1, 5 * GPU_HOUR)
    out = played(policy(session_gpus=0), first, second)
    assert (out.total.jobs, out.total.refused, out.total.before, out.total.after) == (1, 1, 4 * GPU_HOUR, 0)


def test_what_the_policy_refunds_makes_room() -> None:
    jobs = (job(1, 0, 4, state="NODE_FAIL"), job(2, 5, 4))
    tight = policy(gpu_time=4, window="week")
    assert played(tight, *jobs).total.refused == 0
    assert played(replace(tight, refunds=("preemption",)), *jobs).total.refused == 1


def test_soft_limits_are_counted_and_refuse_nothing() -> None:
    soft = policy(gpu_time=4, window="week", soft=True)
    out = played(soft, job(1, 0, 4), job(2, 5, 1), job(3, 7 * 24, 1))
    assert (out.total.refused, out.total.soft) == (0, 1)


def test_grants_count_from_when_they_were_given_and_prices_as_they_are() -> None:
    grant = Entry("g", Kind.GRANT, "c", "nlp", 4 * GPU_HOUR, float(T + 5 * HOUR))
    jobs = (job(1, 0, 1), job(2, 1, 4), job(3, 6, 4), job(4, 11, 1, limit=1))
    out = played(policy(needs_grant=True), *jobs, left={"nlp": 4 * GPU_HOUR}, grants=[grant])
    assert (out.total.refused, out.total.before) == (1, 10 * GPU_HOUR)
    assert out.lines[0].first_at == T + HOUR
    dear = played(policy(gpu_time=4, window="week"), job(1, 0, 1), factor=lambda *_: 1001)
    assert dear.lines[0].first.startswith("User ada may use 4 GPU-hours a week; 0 are used or held, and this needs 4")
    assert dear.total.before == 1001 * HOUR


def test_a_job_with_two_types_needs_both_to_be_allowed() -> None:
    both = replace(job(1, 0, 1), gpus=(Gpus("a100", 1), Gpus("t4", 2)))
    assert played(policy(gpu_types=["a100", "t4"]), both).total.refused == 0
    assert played(policy(gpu_types=["a100"]), both).total.refused == 1
    assert played(policy(session_gpus=2), both).total.refused == 1


def test_open_jobs_and_jobs_that_never_ran_do_no_harm() -> None:
    waiting = job(2, 2, 0, start=0.0, end=float(T + 3 * HOUR))
    running = job(1, 0, 0, end=0.0)
    back = job(3, 4, -1)  # its clock was set back
    out = replay(policy(sessions=3), [running, waiting, back], PEOPLE, now=T + 2 * HOUR)
    assert (out.total.refused, out.total.before) == (0, 2 * GPU_HOUR)


@st.composite
def histories(draw: st.DrawFn) -> list[Usage]:
    return [
        job(
            id,
            draw(st.integers(0, 24 * 30)),
            draw(st.integers(0, 100)),
            limit=draw(st.sampled_from([1, 10, 100])),
            gpus=draw(st.integers(0, 3)) or 1,
            user=draw(st.sampled_from(["ada", "bob", "eva"])),
            account=draw(st.sampled_from(["nlp", "vision"])),
        )
        for id in range(draw(st.integers(1, 15)))
    ]


@st.composite
def rules(draw: st.DrawFn) -> dict[str, object]:
    rule: dict[str, object] = draw(st.sampled_from([{"user": "*"}, {"account": "*"}, {"group": "students"}])).copy()
    if "group" in rule:
        rule["together"] = draw(st.booleans())
    kind = draw(st.sampled_from(["time", "gpus", "sessions", "day"]))
    if kind == "time":
        rule |= {"gpu_time": draw(st.integers(0, 200)), "window": draw(st.sampled_from(Window)).value}
        rule |= {"days": draw(st.integers(1, 20))} if rule["window"] == "rolling" else {}
        rule |= {"start": "2026-10-07", "end": "2026-10-20"} if rule["window"] == "term" else {}
    elif kind == "gpus":
        rule["concurrent_gpus"] = draw(st.integers(1, 6))
    else:
        rule["sessions" if kind == "sessions" else "sessions_per_day"] = draw(st.integers(1, 3))
    return rule


def recount(policy: Policy, jobs: Sequence[Usage]) -> set[int]:
    """The oracle: for each job, add up everything that was admitted before, from scratch."""
    refused: set[int] = set()
    taken: list[Usage] = []
    for usage in sorted(jobs, key=lambda u: (u.submitted, u.job_id)):
        now, use = usage.submitted, {}
        applied = applicable(policy.quotas, PEOPLE.get(usage.user, Person(usage.user)), usage.account)
        for one in applied:
            ours = [u for u in taken if one in applicable(policy.quotas, PEOPLE.get(u.user, Person(u.user)), u.account)]
            window = span(one.quota, now, policy.zone)
            running = [u for u in ours if u.end > now]
            use[one.quota.id, one.subject] = SubjectUsage(
                gpu_time=sum(u.gpus[0].count * u.time_limit * 1000 for u in running)
                + sum(u.gpus[0].count * int(overlap(u.start, u.end, window)) * 1000 for u in ours if u.end <= now),
                gpus=sum(u.gpus[0].count for u in running),
                sessions=len(running),
                started=tuple(u.submitted for u in ours),
            )
        if allowed(applied, QuotaRequest(usage.account, usage.gpus[0], usage.time_limit), Facts(now, use)):
            taken.append(usage)
        else:
            refused.add(usage.job_id)
    return refused


@given(histories(), st.lists(rules(), min_size=1, max_size=3), st.sampled_from(["UTC", "America/Havana"]))
def test_it_agrees_with_a_recount_from_scratch(jobs: list[Usage], rules: list[dict[str, object]], zone: str) -> None:
    wanted = parse_policy({"zone": zone, "quotas": [{"id": f"q{n}", **rule} for n, rule in enumerate(rules)]})
    out, refused = played(wanted, *jobs), recount(wanted, jobs)
    event(f"refused {min(len(refused), 3)}")
    assert out.total.refused == len(refused)
    for line in out.lines:
        ours = [u for u in jobs if (u.user, u.account) == (line.user, line.account)]
        gone = [u for u in ours if u.job_id in refused]
        amount = sum(u.gpus[0].count * int(u.end - u.start) * 1000 for u in gone)
        assert (line.jobs, line.refused, line.refused_amount) == (len(ours), len(gone), amount)
        assert line.first_at == min((u.submitted for u in gone), default=0)
        assert bool(line.first) == bool(gone)
