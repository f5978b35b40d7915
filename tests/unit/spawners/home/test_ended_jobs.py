"""Jobs that have ended say on the home page what they used; sessions look at the last few of their kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from affected_parts import ID, session
from booked_parts import HOUR, NOW
from test_cards import hub, page, user

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import SACCT, FinishedJob
from carme_hub.domain.activity.minutes import GpuTotal, Total
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import SessionState
from carme_hub.spawners.home.cards import StoredUse, ended_cards
from carme_hub.spawners.home.finished import MOST, ended_jobs
from carme_hub.store.activity import JobUse


def job(number: int = 1, **changes: Any) -> FinishedJob:
    used = Used(cpus=15.0, memory=2000, measured=1.0)
    ended = NOW - 60 * number
    found = FinishedJob(
        *(number, "sam", "lab", "gpu", "COMPLETED", ended - HOUR, ended - HOUR, ended, Asked(0, 16, 32_768, 120), used),
        source=SACCT,
        name="train",
        shown_id="12_3",
    )
    return replace(found, **changes)


def test_a_job_of_the_command_line_says_what_it_used() -> None:
    [row] = ended_jobs([job()], NOW)
    assert (row.what, row.number, row.ran, row.state) == ("train", "12_3", "1 h", "completed")
    assert row.line == "Memory: 2.0 GiB of 32 GiB at most. CPUs: 15.0 of 16 on average. Time: 1 h of 2 h."
    assert row.suggestion.startswith("Ask for 3 GiB of memory")


def test_only_the_newest_of_the_last_days_are_listed_and_sessions_have_their_own() -> None:
    old, own = job(9, ended=NOW - 4 * 86_400), job(8, interactive=True, session=ID)
    found = ended_jobs([own, *(job(number) for number in range(MOST + 2)), old], NOW)
    assert len(found) == MOST
    [batch] = ended_jobs([job(session=ID, name="run-1", state="OUT_OF_MEMORY")], NOW)
    assert (batch.what, batch.state) == ("Batch job run-1", "out of memory")


def test_the_page_escapes_names_of_jobs() -> None:
    shown = page(ended_jobs=ended_jobs([job(name="<b>")], NOW), user=user())
    assert "<b>" not in shown
    assert "Jobs that have ended in the last days" in shown
    assert "carme-ended-jobs" not in page(ended_jobs=[], user=user())


def test_the_advice_of_a_session_looks_at_the_ones_before() -> None:
    ended = session(
        **{"state": SessionState.ENDED, "started": NOW - 2 * HOUR, "ended": NOW - HOUR, "end_reason": "Stopped."},
        request=replace(session().request, gpus=Gpus("a100", 4)),
    )
    gpu, idle = GpuTotal(80 * 3600, 3600, 95, 20_000), GpuTotal(0, 3600, 0, 10)
    use = JobUse(ID, "n1", int(NOW - HOUR), {}, Total(3600, memory=2000, gpus=(gpu, idle, idle, idle)))
    before = job(
        50,
        asked=Asked(4, 2, 4096, 240),
        used=Used(3, 50.0, 9000, measured=1.0),
        image="base",
        interactive=True,
        name="",
    )
    before = replace(before, ended=NOW - 3 * HOUR, started=NOW - 4 * HOUR)
    stored = StoredUse(True, {ID: [use]})
    [card] = ended_cards(hub(), [ended], {}, stored, NOW, virtual=False, finished=[before])
    assert card.suggestion == "Ask for 3 GPUs. That is by the last 2 jobs like it."
    [alone] = ended_cards(hub(), [ended], {}, stored, NOW, virtual=True)
    assert alone.suggestion == "Ask for 1 virtual GPU."
