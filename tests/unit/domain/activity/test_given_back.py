"""What was given back is counted by month, and who started again at once is a false alarm."""

from __future__ import annotations

from carme_hub.domain.activity.given_back import Month, idle_end, months
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState

AT = 1_800_000_000.0  # 15 January 2027


def session(id: str = "one", gpus: int = 2, **changes: object) -> Session:
    request = Request("a100", "base", Gpus("a100", gpus) if gpus else Gpus(), time_limit=240)
    row = Session(id, "lab", "alice", "", request, SessionState.ENDED, AT - 3700, started=AT - 3600, ended=AT + 30)
    return row.replace(**changes)


def test_a_session_gives_back_its_gpus_for_the_rest_of_its_time() -> None:
    found = idle_end(session(), AT, [session()])
    assert (found.gpu_seconds, found.again) == (2 * (3 * 3600 - 30), 0.0)
    assert idle_end(session(gpus=0), AT, []).gpu_seconds == 0
    assert idle_end(session(ended=0.0, started=0.0), AT, []).gpu_seconds == 0


def test_only_another_session_with_gpus_within_ten_minutes_is_a_false_alarm() -> None:
    for begun, gpus, again in ((AT + 500, 1, True), (AT + 700, 1, False), (AT + 500, 0, False), (AT - 10, 1, False)):
        later = session("two", gpus, created=begun)
        assert bool(idle_end(session(), AT, [later]).again) == again


def test_months_have_what_happened_in_them_in_the_policys_zone() -> None:
    january = 1_801_440_000.0 - 1800  # 31 January 23:30 UTC
    ends = [idle_end(session(), AT, []), idle_end(session(started=january, ended=january), january, [])]
    warned = {"one": [AT - 300, AT - 100], "two": [january]}
    assert months(ends, warned, [AT], "UTC") == [
        Month("2027-01", 2, sum(end.gpu_seconds for end in ends), 0, 2, 1),
    ]
    assert [month.month for month in months(ends, warned, [], "Europe/Berlin")] == ["2027-01", "2027-02"]
    assert months([], {}, [], "UTC") == []
