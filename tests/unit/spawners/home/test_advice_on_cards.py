"""A session that has ended says on its card what to ask for next time: by the last few sessions like it."""

from __future__ import annotations

from dataclasses import replace

from affected_parts import ID, session
from booked_parts import HOUR, NOW
from test_cards import hub

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.activity.minutes import GpuTotal, Total
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import SessionState
from carme_hub.spawners.home.cards import StoredUse, ended_cards
from carme_hub.store.activity import JobUse


def test_the_advice_of_a_session_looks_at_the_ones_before() -> None:
    ended = session(
        **{"state": SessionState.ENDED, "started": NOW - 2 * HOUR, "ended": NOW - HOUR, "end_reason": "Stopped."},
        request=replace(session().request, gpus=Gpus("a100", 4)),
    )
    gpu, idle = GpuTotal(80 * 3600, 3600, 95, 20_000), GpuTotal(0, 3600, 0, 10)
    use = JobUse(ID, "n1", int(NOW - HOUR), {}, Total(3600, memory=2000, gpus=(gpu, idle, idle, idle)))
    times = NOW - 4 * HOUR, NOW - 4 * HOUR, NOW - 3 * HOUR
    asked, used = Asked(4, 2, 4096, 240), Used(3, 50.0, 9000, measured=1.0)
    before = FinishedJob(50, "sam", "lab", "gpu", "COMPLETED", *times, asked, used, image="base", interactive=True)
    stored = StoredUse(True, {ID: [use]})
    [card] = ended_cards(hub(), [ended], {}, stored, NOW, virtual=False, finished=[before])
    assert card.suggestion == "Ask for 3 GPUs. That is by the last 2 jobs like it."
    [alone] = ended_cards(hub(), [ended], {}, stored, NOW, virtual=True)
    assert alone.suggestion == "Ask for 1 virtual GPU."
