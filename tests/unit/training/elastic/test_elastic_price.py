"""What more ranks of an elastic run cost is said before the hub is asked for them, at its start and while it runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from forged_quotes import HubThatQuotes
from test_elastic_run import HubThatGivesLater, running
from test_elastic_run import place as place

from carme_hub.training.elastic import resize
from carme_hub.training.elastic.workers import WorkerCompanion, Workers, WorkerSlot
from carme_hub.training.launch import price
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_options import parse_line
from carme_hub.training.session.companions import Companion, Hub, NoHub, Quote
from carme_hub.training.session.step_broker import Allocation

COSTS = Quote(True, "Costs up to 0.98 GPU-hours of physics", gpu_seconds=3540, said="starts now")
TWO = {"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "8"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> HubThatQuotes:
    found = HubThatQuotes(COSTS)
    monkeypatch.setattr(Hub, "from_environ", lambda: found)
    return found


# -- before it begins -------------------------------------------------------------------------------------------------


def test_an_elastic_run_is_priced_by_the_companions_of_those_that_do_not_fit(hub: HubThatQuotes) -> None:
    assert price.price_of(parse_line("-n 4 --elastic 2:8 --time 90s"), TWO) == (
        "This session has no room for 2 of 4 ranks: 2 companions with 1 GPU each are requested. Each of them: Costs up "
        "to 0.98 GPU-hours of physics. Starts now. All of them: up to 1.97 GPU-hours."
    )
    assert hub.asked == {"nodes": 1, "gpus": 1, "cpus": 4, "minutes": 2}
    assert price.price_of(parse_line("-n 3 --elastic 2:8"), TWO) == (
        "This session has no room for 1 of 3 ranks: 1 companion with 1 GPU is requested. Costs up to 0.98 GPU-hours of "
        "physics. Starts now."
    )
    virtual = price.price_of(parse_line("-n 4 --elastic 2:8"), {**TWO, "CARME_VIRTUAL_GPUS": "1"})
    assert "2 companions with 1 virtual GPU each" in virtual
    assert virtual.endswith("up to 1.97 virtual GPU-hours.")


def test_an_elastic_run_that_fits_asks_nobody(hub: HubThatQuotes) -> None:
    hub.answer = AssertionError("it was asked")
    assert price.price_of(parse_line("-n 2 --elastic 2:8"), TWO) == ""
    assert price.price_of(parse_line("-n 9 --elastic 2:9 --gpus-per-task 0"), TWO) == ""


def test_a_no_of_the_hub_ends_only_a_run_that_is_too_small_then(hub: HubThatQuotes) -> None:
    hub.answer = Quote(False, "Your account has no GPU-time left.")
    assert price.price_of(parse_line("-n 4 --elastic 2:8"), TWO) == (
        "This session has no room for 2 of 4 ranks, and gets no companions: Your account has no GPU-time left. It "
        "starts with 2."
    )
    with pytest.raises(CannotRun, match="no GPU-time left"):
        price.price_of(parse_line("-n 4 --elastic 3:8"), TWO)
    hub.answer = NoHub("It is away.")
    with pytest.raises(CannotRun, match="does not answer"):
        price.price_of(parse_line("-n 4 --elastic 2:8"), TWO)


def test_more_companions_than_a_session_may_have_are_refused_with_their_number(hub: HubThatQuotes) -> None:
    hub.answer = Quote(True, "Costs nothing", companions_left=8, companions_most=8)
    with pytest.raises(CannotRun, match=r"a session may have 8 at once: 8 more can be opened\."):
        price.price_of(parse_line("-n 12 --elastic 11:16"), TWO)
    assert price.price_of(parse_line("-n 12 --elastic 10:16"), TWO) == (
        "This session has no room for 10 of 12 ranks: 8 companions with 1 GPU each are requested. Each of them: Costs "
        "nothing. Each further rank needs a companion, and a session may have 8 at once: 8 more can be opened. It "
        "starts with 10."
    )


def test_one_node_is_asked_for_and_two_are(hub: HubThatQuotes) -> None:
    one = price.price_of(parse_line("-n 1 --gpus-per-task 1"), {"SLURM_JOB_NODELIST": "n1"})
    assert "1 node with 1 GPU more is requested." in one
    assert "2 nodes with 4 GPUs more are requested." in price.price_of(parse_line("-n 4"), TWO)


# -- while it runs ----------------------------------------------------------------------------------------------------


class HubThatLooksAtTheRun(HubThatGivesLater):
    """Keeps what the run says at the moment in which it is asked for a companion."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Any = None
        self.seen: list[str] = []

    def open(self, **parse_line: Any) -> Companion:
        self.seen.append(self.look())
        return super().open(**parse_line)


def test_more_ranks_are_priced_before_they_are_asked_for() -> None:
    hub = HubThatLooksAtTheRun()
    with running(hub=hub) as story:
        story.of_size(2)
        hub.look = lambda: story.conductor.state.get()["message"]
        said = story.resize(+2)
        cost = "2 companions. Each of them: Costs up to 0.5 GPU-hours. Starts now. All of them: up to 1.00 GPU-hours."
        assert said == f"{cost} 2 requested: starts soon"
        assert hub.seen[0] == cost, "who looks on reads it first"


def test_what_the_hub_would_refuse_is_not_asked_for() -> None:
    with running(limits=(2, 9)) as story:
        story.of_size(2)
        story.hub.price = Quote(False, "The account has 0.1 GPU-hours left.")
        with pytest.raises(RequestRefused, match=r"0\.1 GPU-hours left"):
            story.resize(+1)
        story.hub.price = Quote(True, "Costs nothing", companions_left=1, companions_most=8)
        with pytest.raises(RequestRefused, match="a session may have 8 at once: 1 more can be opened"):
            story.resize(+2)
        story.hub.price, story.hub.most = COSTS, 0
        with pytest.raises(RequestRefused, match="no GPU-time left"):
            story.resize(+1)
        assert story.hub.opened == {}
        story.until(lambda state: "Costs" not in state["message"])


def test_a_hub_that_says_no_price_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "QUOTE_TIMEOUT", 0.3)
    with running() as story:
        story.of_size(2)
        story.hub.silent = threading.Event()
        began = time.monotonic()
        with pytest.raises(RequestRefused, match="so no GPUs were requested"):
            story.resize(+1)
        assert time.monotonic() < began + 5
        story.hub.silent.set()
        assert story.hub.opened == {}


def test_seats_of_the_session_are_taken_though_the_hub_gives_no_more() -> None:
    with running(gpus=2, limits=(2, 6), most=0) as story:
        story.of_size(2)
        assert story.resize(+3).endswith(
            "2 in the session's own job. No companions: Your account has no GPU-time left."
        )
        story.of_size(4)


# -- a session without room -------------------------------------------------------------------------------------------


def test_a_run_that_has_only_companions_can_be_resized() -> None:
    with running(each=1) as story:
        story.of_size(2)
        assert "1 requested" in story.resize(+1)
        story.of_size(3)
        assert story.conductor.state.get()["own_gpus"] == 0


def test_why_the_companions_ended_is_said_where_nobody_is_left() -> None:
    hub = HubThatGivesLater()
    hub.wait = 1e9
    with running(each=1, hub=hub) as story:
        story.until(lambda state: "2 more ranks wait for GPUs" in state["message"])
        hub.ended.update(hub.opened)
        state = story.end()
        assert state["state"] == "failed"
        assert state["message"].startswith("No rank is left.")
        assert "ended before it ran: a job with a higher priority took the place." in state["message"]


def test_a_companion_that_runs_and_has_no_worker_yet_is_not_forgotten() -> None:
    has = Allocation(2, ("c1",), 2, 1, "a100", 0.0, "127.0.0.1")
    crew = Workers(
        slots=[WorkerSlot("n1", 0)],
        companions={"one": WorkerCompanion("one", 0, allocation=has), "two": WorkerCompanion("two", 1)},
    )
    assert crew.numbers() == [0, 1]
    assert [share.id for share in crew.choose_leaving(2)[0]] == ["two", "one"], (
        "and is the next to go, before any that train"
    )
    crew.to_start.append((0.0, 0, WorkerSlot("c1", 0, "one")))
    crew.companions["one"].number = -1
    assert crew.numbers() == [0, 1]
