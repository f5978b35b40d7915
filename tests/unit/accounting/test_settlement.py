"""Every incarnation is charged once, by what Slurm says; holds come back; rules refund; what looks wrong waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forged_site import ADA, DAY, GRANTED_ONLY, HOUR, MONDAY, Site, a100, usage

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance, Kind
from carme_hub.domain.quotas.rules import Quota, QuotaRequest, SubjectKind, Window
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, SessionState
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import Filter

ENDED = SessionState.ENDED


async def started(site: Site, id: str = "s1", job: int = 7, **changes: object) -> None:
    """Admit a session of one hour with one GPU, the job of which has begun."""
    assert (await site.ledger.admit(id, ADA, a100())).granted
    changes = {"job_id": job, "started": site.now, "state": SessionState.RUNNING, **changes}
    site.session(id)
    site.session(id, **changes)


async def balance(site: Site) -> Balance:
    return (await site.ledger.balances(["physics"]))["physics"]


async def test_an_early_stop_is_charged_by_its_seconds_and_the_rest_comes_back(site: Site) -> None:
    await site.grant(2 * GPU_HOUR)
    await started(site)
    job = site.usage_of(start=MONDAY + 3, end=MONDAY + 603)
    site.now += 700
    done = await site.settle(job)
    assert [(e.amount, e.session, e.factor, e.reason) for e in done.charged] == [
        (-600_000, "s1", 1000, "job 7: completed")
    ]
    assert [e.amount for e in done.released] == [GPU_HOUR]
    assert await balance(site) == Balance(2 * GPU_HOUR, 600_000, 0)


async def test_settling_again_writes_nothing(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await started(site)
    jobs = [
        site.usage_of(start=MONDAY, end=MONDAY + 9),
        usage(8, MONDAY, MONDAY + 5, "NODE_FAIL"),
        usage(9, MONDAY + 9, 2),
    ]
    site.now += 700
    assert await site.settle(*jobs)
    before = await site.ledger.statement(Filter())
    assert not await site.settle(*jobs)
    assert not await site.settle(*reversed(jobs))
    assert await site.ledger.statement(Filter()) == before
    assert await site.ledger.last_settled() == site.now


async def test_what_waits_or_runs_is_not_charged_and_its_hold_stays(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await started(site)
    for job in (site.usage_of(), site.usage_of(start=MONDAY), site.usage_of(start=MONDAY, state="SUSPENDED")):
        assert not await site.settle(job)
    assert not await site.settle(replace(site.usage_of(start=MONDAY), state="COMPLETED", phase=Phase.TERMINAL))
    assert (await balance(site)).held == GPU_HOUR


async def test_a_job_that_was_requeued_three_times_has_a_charge_for_each_run_and_one_release(site: Site) -> None:
    await site.grant(9 * GPU_HOUR)
    await started(site)
    runs, at = [], MONDAY
    for length in (100, 200, 300):
        runs.append(site.usage_of(start=at, end=at + length, state="REQUEUED", submitted=at))
        at += length + 120
        site.now = float(at)
        waiting = [site.usage_of(submitted=at - 120)] if length == 100 else []  # accounting may be late with it
        done = await site.settle(*runs, *waiting)
        assert ([-e.amount for e in done.charged], done.released) == ([length * 1000], [])
    runs.append(site.usage_of(start=at, end=at + 400, submitted=at - 120))
    site.now = at + 500.0
    done = await site.settle(*runs)
    assert ([-e.amount for e in done.charged], len(done.released)) == ([400_000], 1)
    assert await balance(site) == Balance(9 * GPU_HOUR, 1_000_000, 0)


async def test_everything_that_used_the_account_counts(site: Site) -> None:
    gpus = (Gpus("a100", 2), Gpus("h100", 1))
    site.prices = {"h100": 2500}
    jobs = [
        usage(20, MONDAY, MONDAY + 10, shown_id="20_1", name="array"),
        usage(21, MONDAY, MONDAY + 10, shown_id="20_2", name="array"),
        usage(30, MONDAY, MONDAY + 10, shown_id="30+0", gpus=gpus, user="bob"),
        usage(40, MONDAY, MONDAY + 10, "TIMEOUT", name="carme-somebody-elses"),
        usage(50, 0, MONDAY + 10, "CANCELLED by 1000"),
        usage(60, MONDAY, MONDAY, "FAILED"),
    ]
    site.now += 700
    done = await site.settle(*jobs)
    assert {e.job_id: -e.amount for e in done.charged} == {20: 10_000, 21: 10_000, 30: 45_000, 40: 10_000, 60: 0}
    assert {e.session for e in done.charged} == {""}
    [mixed] = [e for e in done.charged if e.job_id == 30]
    assert (mixed.gpus, mixed.factor, mixed.user, mixed.reason) == (gpus, 0, "bob", "job 30+0: completed")


async def test_a_job_is_charged_at_the_price_at_which_it_was_admitted(site: Site) -> None:
    await site.grant(9 * GPU_HOUR)
    assert (await site.ledger.admit("s1", ADA, a100(), partition="gpu", qos="normal")).granted
    site.session("s1", job_id=7, started=site.now, state=SessionState.RUNNING)
    site.prices = {"a100": 4000}
    site.now += 700
    ours = site.usage_of(start=MONDAY, end=MONDAY + 10, partition="gpu", qos="normal")
    done = await site.settle(ours, usage(8, MONDAY, MONDAY + 10))
    assert sorted(-e.amount for e in done.charged) == [10_000, 40_000]


async def test_what_was_left_to_slurm_is_charged_at_the_price_of_what_slurm_chose(site: Site) -> None:
    await site.grant(9 * GPU_HOUR)
    await started(site)  # names no partition and no QOS
    site.prices = {"a100": 4000}
    site.now += 700
    done = await site.settle(site.usage_of(start=MONDAY, end=MONDAY + 10, partition="dear", qos="normal"))
    assert [-e.amount for e in done.charged] == [40_000]


@pytest.mark.parametrize(
    ("state", "rule"),
    [("NODE_FAIL", "node-failure"), ("BOOT_FAIL", "node-failure"), ("PREEMPTED", "preemption")],
)
async def test_what_the_user_could_not_help_is_refunded_with_the_reason(site: Site, state: str, rule: str) -> None:
    site.now += 700
    done = await site.settle(usage(7, MONDAY, MONDAY + 10, state))
    [refund] = done.refunded
    assert (refund.kind, refund.amount, refund.job_id, refund.reason[:10]) == (Kind.CORRECTION, 10_000, 7, "refunded: ")
    assert await site.left() == 0
    site.refunds = tuple(each for each in site.refunds if each != rule)
    done = await site.settle(usage(8, MONDAY, MONDAY + 10, state))
    assert (len(done.charged), done.refunded) == (1, [])


async def test_a_session_that_never_became_usable_is_refunded_when_that_is_certain(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await started(site, started=0.0, state=SessionState.SUBMITTED)
    job = site.usage_of(start=MONDAY, end=MONDAY + 90, state="CANCELLED by 0")
    site.now = MONDAY + 100.0
    done = await site.settle(job)
    assert (done.charged, done.released, len(done.waiting)) == ([], [], 1)
    site.session("s1", state=ENDED, ended=site.now)
    done = await site.settle(job)
    assert [each.reason for each in done.refunded] == ["refunded: the session never became usable"]
    assert (len(done.charged), len(done.released)) == (1, 1)
    assert await site.left() == GPU_HOUR


async def test_another_job_with_the_name_of_a_session_that_failed_is_not_refunded(site: Site) -> None:
    site.quotas = ()
    await started(site, job=7, started=0.0)
    site.session("s1", state=ENDED, ended=site.now)
    site.now += 700
    done = await site.settle(site.usage_of(job=8, start=MONDAY, end=MONDAY + 90))
    assert (len(done.charged), done.refunded) == (1, [])
    assert [entry.session for entry in done.released] == ["s1"]  # a job's name keeps nobody's hold


async def test_who_made_way_for_maintenance_is_refunded_once_for_the_incarnation_that_ran_then(site: Site) -> None:
    await site.grant(2 * GPU_HOUR)
    await started(site)
    site.session(
        "s1", cancel_wanted=MONDAY + 800.0, cancel_reason=f"{MAINTENANCE_STOP}n1.", state=ENDED, ended=MONDAY + 830.0
    )
    requeued = site.usage_of(start=MONDAY, end=MONDAY + 300, state="REQUEUED", submitted=MONDAY)
    last = site.usage_of(start=MONDAY + 420, end=MONDAY + 830, state="CANCELLED by 0", submitted=MONDAY + 300)
    site.now = MONDAY + 900.0
    done = await site.settle(requeued, last)
    [refund] = done.refunded
    assert (refund.amount, refund.submitted) == (410_000, MONDAY + 300)
    assert refund.reason == "refunded: its user stopped it for maintenance of the node"
    assert await site.left() == 2 * GPU_HOUR - 300_000
    assert not await site.settle(requeued, last)


@pytest.mark.parametrize(
    "changes",
    [
        {"cancel_reason": "Stopped."},
        {"cancel_reason": "My app was Stopped for maintenance of n1."},
        {"cancel_wanted": MONDAY + 1000.0},  # it had ended by itself long before
        {"job_id": 8},  # another job of that name
    ],
)
async def test_who_did_not_make_way_pays(site: Site, changes: dict[str, object]) -> None:
    site.quotas = ()
    await started(site)
    made_way = {"cancel_wanted": MONDAY + 800.0, "cancel_reason": f"{MAINTENANCE_STOP}n1.", "ended": MONDAY + 830.0}
    site.session("s1", **{**made_way, "state": ENDED, **changes})
    site.now += 7000
    done = await site.settle(site.usage_of(start=MONDAY, end=MONDAY + 830, state="CANCELLED by 0"))
    assert (len(done.charged), done.refunded) == (1, [])


async def test_a_refund_that_is_switched_off_is_not_given(site: Site) -> None:
    site.quotas, site.refunds = (), ()
    await started(site, started=0.0)
    site.session("s1", state=ENDED, ended=site.now)
    site.now += 700
    done = await site.settle(site.usage_of(start=MONDAY, end=MONDAY + 90))
    assert (len(done.charged), done.refunded, len(done.released)) == (1, [], 1)


async def test_a_session_that_never_got_a_job_gets_its_hold_back(site: Site) -> None:
    site.quotas = ()
    await started(site, "never", job=0, started=0.0)
    await started(site, "cancelled", job=8, started=0.0)
    await started(site, "open", job=9)
    await started(site, "no-record", job=10, started=0.0)
    for id in ("never", "cancelled", "no-record"):
        site.session(id, state=ENDED, ended=site.now)
    done = await site.settle(site.usage_of("cancelled", 8, 0, site.now, state="CANCELLED"))
    assert [e.session for e in done.released] == ["cancelled", "never"]
    site.now += 70
    done = await site.settle()
    assert ([e.session for e in done.released], done.flagged) == (["no-record"], [])


async def test_a_hold_without_any_row_comes_back_after_two_minutes(site: Site) -> None:
    site.quotas = ()
    await site.ledger.admit("lost", ADA, a100())
    assert not await site.settle()
    site.now += 119
    assert not (await site.settle()).released
    site.now += 2
    assert [e.session for e in (await site.settle()).released] == ["lost"]


async def test_a_session_without_gpus_is_over_when_its_row_says_so(site: Site) -> None:
    site.quotas = ()
    await site.ledger.admit("s1", ADA, QuotaRequest("physics", seconds=HOUR))
    site.session("s1")
    site.session("s1", job_id=7, started=site.now)
    assert not await site.settle()
    site.session("s1", state=ENDED, ended=site.now)
    done = await site.settle()
    assert ([e.amount for e in done.released], done.flagged) == ([0], [])


async def test_a_job_across_midnight_is_split_between_the_days(site: Site) -> None:
    site.quotas = (Quota("day", SubjectKind.USER, gpu_time=10 * GPU_HOUR, window=Window.DAY),)
    await site.settle(usage(7, MONDAY - 1234, MONDAY + 77))
    for now, seconds in ((MONDAY - 1, 1234), (MONDAY + 100, 77), (MONDAY + DAY, 0)):
        site.now = float(now)
        [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
        assert limit.taken.used == seconds * 1000


@pytest.mark.parametrize(
    ("kind", "job"),
    [
        ("negative", usage(7, MONDAY, MONDAY - 5)),
        ("long", usage(7, MONDAY - 2 * HOUR, MONDAY, time_limit=HOUR)),
        ("long", usage(7, MONDAY, MONDAY + DAY)),
        ("runaway", usage(7, MONDAY - HOUR)),
    ],
)
async def test_what_looks_wrong_is_flagged_once_and_not_charged(site: Site, kind: str, job: object) -> None:
    done = await site.settle(job, live={1, 2, 3})
    assert ([each.kind for each in done.flagged], done.charged) == ([kind], [])
    assert not await site.settle(job, live={1, 2, 3})
    [found] = await site.ledger.anomalies()
    assert (found.kind, found.job_id, found.user, found.seen["gpus"]) == (kind, 7, "ada", "a100:1")
    assert await balance(site) == Balance()


async def test_a_job_is_no_runaway_while_the_controller_does_not_answer_or_has_it(site: Site) -> None:
    job = usage(7, MONDAY - HOUR)
    assert not await site.settle(job, live=None)
    assert not await site.settle(job, live={7})


async def test_a_runaway_that_ended_after_all_is_charged_and_leaves_the_queue(site: Site) -> None:
    await site.settle(usage(7, MONDAY - HOUR), live=())
    done = await site.settle(usage(7, MONDAY - HOUR, MONDAY - 60), live=())
    assert [-e.amount for e in done.charged] == [3540_000]
    assert await site.ledger.anomalies() == []


async def test_two_records_of_one_id_that_overlap_wait_for_a_person(site: Site) -> None:
    forever, real = usage(7, MONDAY - 900, submitted=10.0), usage(7, MONDAY - 300, MONDAY - 60, submitted=20.0)
    done = await site.settle(forever, real, live={7})
    assert sorted(each.submitted for each in done.flagged) == [10, 20]
    assert {each.kind for each in done.flagged} == {"reused-id"}
    assert done.charged == []


async def test_an_id_that_was_charged_before_is_seen_when_it_comes_again(site: Site) -> None:
    await site.settle(usage(7, MONDAY - 900, MONDAY - 100, submitted=10.0))
    done = await site.settle(usage(7, MONDAY - 300, MONDAY - 60, submitted=20.0))
    assert ([each.kind for each in done.flagged], done.charged) == (["reused-id"], [])


async def test_a_session_of_which_accounting_knows_nothing_keeps_its_hold_until_a_person_decides(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await started(site)
    site.session("s1", state=ENDED, ended=site.now)
    assert not await site.settle()
    site.now += 700
    done = await site.settle(since=MONDAY - HOUR)
    assert ([each.kind for each in done.flagged], done.released) == (["missing"], [])
    [found] = await site.ledger.anomalies()
    with pytest.raises(Refused, match="write a correction"):
        await site.ledger.decide_anomaly(found.id, actor="root", decision="charge it", seconds=60)
    await site.ledger.decide_anomaly(found.id, actor="root", decision="the database was lost")
    assert [e.session for e in (await site.settle()).released] == ["s1"]
    assert await site.left() == GPU_HOUR


async def test_a_record_that_changed_after_its_charge_is_flagged_and_put_right_by_a_person(site: Site) -> None:
    await site.settle(usage(7, MONDAY - 100, MONDAY - 40))
    later = usage(7, MONDAY - 100, MONDAY - 10)
    done = await site.settle(later)
    assert ([each.kind for each in done.flagged], done.charged) == (["changed"], [])
    report = await site.ledger.reconcile([later], MONDAY - DAY, MONDAY)
    assert (report.waiting, report.difference) == (("charge:lab:7:50",), 0)
    [found] = await site.ledger.anomalies()
    entry = await site.ledger.decide_anomaly(found.id, actor="root", decision="its end came late", seconds=90)
    assert (entry.kind, entry.amount, entry.actor) == (Kind.CORRECTION, -30_000, "root")
    assert await balance(site) == Balance(used=90_000)
    assert not await site.settle(later)
    with pytest.raises(Refused, match="has decided on this already"):
        await site.ledger.decide_anomaly(found.id, actor="eve", decision="again", seconds=1)


async def test_what_a_person_decides_is_charged_and_the_hold_comes_back(site: Site) -> None:
    site.quotas = ()
    await started(site)
    site.session("s1", state=ENDED, ended=site.now)
    job = site.usage_of(start=MONDAY, end=MONDAY - 30)
    done = await site.settle(job)
    assert ([each.kind for each in done.flagged], done.released) == (["negative"], [])
    [found] = await site.ledger.anomalies()
    with pytest.raises(Refused, match="Give a reason"):
        await site.ledger.decide_anomaly(found.id, actor="root", decision=" ", seconds=40)
    entry = await site.ledger.decide_anomaly(found.id, actor="root", decision="the clock stepped", seconds=40)
    assert (entry.amount, entry.session, entry.reason) == (-40_000, "s1", "job 7: the clock stepped")
    done = await site.settle(job)
    assert (done.charged, done.flagged, len(done.released)) == ([], [], 1)
    assert await balance(site) == Balance(used=40_000)


async def test_a_person_can_decide_that_nothing_is_charged(site: Site) -> None:
    await site.settle(usage(7, MONDAY, MONDAY - 30))
    [found] = await site.ledger.anomalies()
    assert await site.ledger.decide_anomaly(found.id, actor="root", decision="nothing ran") is None
    assert not await site.settle(usage(7, MONDAY, MONDAY - 30))
    report = await site.ledger.reconcile([usage(7, MONDAY, MONDAY - 30)], MONDAY - DAY, MONDAY + DAY)
    assert (report.decided, report.missing, report.difference) == (("charge:lab:7:50",), (), 0)


async def test_the_ledger_agrees_with_slurm_to_the_second_and_says_where_it_does_not(site: Site) -> None:
    jobs = [usage(n, MONDAY - 1000 + n, MONDAY - 900 + 2 * n, gpus=(Gpus("a100", 1 + n % 3),)) for n in range(1, 60)]
    await site.settle(*jobs)
    report = await site.ledger.reconcile(jobs, MONDAY - DAY, MONDAY)
    expected = sum((100 + n) * (1 + n % 3) for n in range(1, 60))
    assert (report.jobs, report.ledger, report.slurm, report.difference) == (59, expected, expected, 0)
    assert (report.missing, report.extra, report.changed) == ((), (), ())
    other = usage(99, MONDAY - 50, MONDAY - 40)
    report = await site.ledger.reconcile([*jobs[1:], other], MONDAY - DAY, MONDAY)
    assert (report.missing, report.extra) == (("charge:lab:99:50",), ("charge:lab:1:50",))
    assert report.difference == 10 - 101 * 2


async def test_every_charge_can_be_made_anew_from_accounting(site: Site) -> None:
    site.quotas = (GRANTED_ONLY,)
    await site.grant(9 * GPU_HOUR)
    await started(site)
    jobs = [site.usage_of(start=MONDAY, end=MONDAY + 10), usage(8, MONDAY, MONDAY + 10, "NODE_FAIL", user="bob")]
    site.now += 700
    done = await site.settle(*jobs)
    rebuilt = await site.ledger.rebuild(jobs)
    assert [entry.replace(id=0) for entry in done.charged] == rebuilt
