"""What real Slurm recorded is charged as (end − start) × GPUs, and the ledger agrees with it exactly.

The answers are of requeues, preemption, suspension, arrays, heterogeneous jobs, failed nodes, resized jobs, and jobs
from sbatch, srun and salloc.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from forged_site import DAY, Site

from carme_hub.accounting.anomalies.detection import is_ended
from carme_hub.domain.ledger.entries import charge_key
from carme_hub.slurm.usage import read

GOLDEN = Path(__file__).parents[2] / "slurm" / "golden"
CUT = "@golden@"


@pytest.mark.parametrize("release", ["22.05", "24.11"])
async def test_what_slurm_recorded_is_charged_to_the_second_and_again_not_at_all(site: Site, release: str) -> None:
    usages = read((GOLDEN / f"sacct-{release}.txt").read_text(), CUT)
    ended = [each for each in usages if is_ended(each)]
    site.now = max(each.end for each in ended) + 60
    done = await site.settle(*usages, live={each.job_id for each in usages if not is_ended(each)})
    assert done.flagged == []
    assert {entry.key for entry in done.charged} == {charge_key("lab", u.job_id, u.submitted) for u in ended}
    assert len(done.charged) == len(ended) > 20
    seconds = sum(int(u.end - u.start) * sum(gpus.count for gpus in u.gpus) for u in ended)
    assert -sum(entry.amount for entry in done.charged) == seconds * 1000
    assert {entry.reason for entry in done.refunded} == {
        "refunded: a node failed",
        "refunded: the job was preempted",
    }
    assert not await site.settle(*usages, live={each.job_id for each in usages if not is_ended(each)})
    report = await site.ledger.reconcile(usages, site.now - 3 * DAY, site.now)
    assert (report.jobs, report.slurm, report.difference) == (len(ended), seconds, 0)
    assert (report.missing, report.extra, report.changed, report.waiting) == ((), (), (), ())
    assert [e.replace(id=0) for e in done.charged] == sorted(
        await site.ledger.rebuild(usages), key=lambda e: [c.key for c in done.charged].index(e.key)
    )


async def test_jobs_that_were_requeued_three_times_pay_once_for_each_of_four_incarnations(site: Site) -> None:
    usages = read((GOLDEN / "sacct-22.05-requeued.txt").read_text(), CUT)
    states = ["REQUEUED", "REQUEUED", "REQUEUED", "CANCELLED"]
    for name, seconds in (("requeued", [4, 4, 4, 3]), ("again", [1, 2, 2, 2])):
        mine = [each for each in usages if each.name == name]
        assert [(each.state.split()[0], each.seconds(0)) for each in mine] == list(zip(states, seconds, strict=True))
        assert len({each.job_id for each in mine}) == 1
    site.now = max(each.end for each in usages) + 60
    done = await site.settle(*usages)
    assert (done.flagged, len(done.charged)) == ([], 8)
    by_user = {user: -sum(e.amount for e in done.charged if e.user == user) for user in ("alice", "bob")}
    assert by_user == {"alice": 15 * 1000, "bob": 7 * 2 * 1000}
    assert not await site.settle(*usages)
    report = await site.ledger.reconcile(usages, site.now - 3 * DAY, site.now)
    assert (report.jobs, report.slurm, report.difference) == (8, 29, 0)
