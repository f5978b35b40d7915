"""Companions of a run come once and go with it, also where the hub's answer is lost or Slurm does not answer once."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from started_here import StepHere
from test_elastic_run import BrokerWithCompanions, HubThatGivesLater, running
from test_elastic_run import place as place

from carme_hub.training.conductor import companion as companion_job
from carme_hub.training.conductor.fixed_size import FixedSizeRun
from carme_hub.training.elastic import elastic_run
from carme_hub.training.launch.new_run import create
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.run_folder import ENDED, State
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Companion, Hub, NoHub, Refused
from carme_hub.training.session.step_broker import Allocation, NoBroker, RunningStep, Step


class HubThatLosesAnswers(HubThatGivesLater):
    """Opens what it is asked for, once for each key, and says so only after ``lost`` answers."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__()
        self.lost, self.excludes, self.older = lost, True, False
        self.held: threading.Event | None = None
        self.asked = threading.Event()

    def open(self, **asked: Any) -> Companion:
        assert len(asked["name"]) <= 64, "the hub takes no longer one"
        self.asked.set()
        if asked.get("replaces") and self.older:
            raise Refused("Unknown: replaces.", "400")
        if asked.get("exclude") and not self.excludes:
            raise Refused("No other node could ever give that.")
        if self.held is not None:
            self.held.wait(20)
        found = [id for id, each in self.opened.items() if each["key"] == asked["key"]]
        opened = Companion(found[0], self.state(found[0])) if found else super().open(**asked)
        if self.lost:
            self.lost -= 1
            raise NoHub("The hub does not answer.")
        return opened

    def list(self) -> tuple[Companion, ...]:
        return tuple(replace(each, name=self.opened[each.id]["name"]) for each in super().list())


class BrokerThatSlurmDoesNotAnswer(BrokerWithCompanions):
    """Fails for some questions and for workers of some names, as where slurmctld is busy."""

    def __init__(self, hub: HubThatGivesLater, nodes: int = 2, gpus: int = 0) -> None:
        super().__init__(hub, nodes, gpus)
        self.silent = 0
        self.busy: list[str] = []
        self.slow: threading.Event | None = None
        self.starting = threading.Event()

    def allocation(self, companion: str = "") -> Allocation:
        if companion and self.silent:
            self.silent -= 1
            raise NoBroker("Slurm does not answer.")
        found = super().allocation(companion)
        if companion:
            found = replace(found, nodes=(found.nodes[0], "c9")[: self.hub.opened[companion]["nodes"]])
        return found

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        if step.slot in self.busy:
            raise NoBroker("Slurm does not answer.")
        if self.slow is not None:
            self.starting.set()
            self.slow.wait(30)
        if step.slot.startswith("w"):
            return super().start(step, out, err)
        nodes = self.allocation(step.companion).nodes
        self.steps["all"] = StepHere(step, step.nodes or nodes, step.gpus_per_node, out, err)
        return self.steps["all"]


@contextmanager
def elastic_with(hub: HubThatLosesAnswers, **more: Any) -> Iterator[Any]:
    with running(hub=hub, broker=BrokerThatSlurmDoesNotAnswer, **more) as story:
        yield story


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> HubThatLosesAnswers:
    found = HubThatLosesAnswers()
    monkeypatch.setattr(Hub, "from_environ", lambda: found)
    for name in ("POLL_INTERVAL", "RETRY_INTERVAL"):
        monkeypatch.setattr(companion_job, name, 0.05)
    return found


def fixed(hub: HubThatLosesAnswers, cell: str = "print('here')", **more: Any) -> tuple[FixedSizeRun, threading.Thread]:
    """Conduct a run of two ranks in a session that has one GPU."""
    run = create(RunOptions(2, gpus_per_task=1, detach=True, **more), cell=cell)
    conductor = FixedSizeRun(run, BrokerThatSlurmDoesNotAnswer(hub, nodes=1, gpus=1))
    thread = threading.Thread(target=conductor.conduct)
    thread.start()
    return conductor, thread


def end_of(conducted: tuple[FixedSizeRun, threading.Thread]) -> State:
    conducted[1].join(20)
    state = conducted[0].state.get()
    if conducted[1].is_alive():
        conducted[0].end("stop", "The test is over.")
        conducted[1].join(20)
    assert state["state"] in ENDED, state
    return state


# -- an elastic run ---------------------------------------------------------------------------------------------------


def test_companions_that_were_got_join_though_the_hub_gives_no_more() -> None:
    with running(most=1) as story:
        story.of_size(2)
        assert "1 of 2 requested; no more: Your account has no GPU-time left." in story.resize(+2)
        story.of_size(3)


def test_each_companion_is_asked_for_with_a_key_of_its_own() -> None:
    hub = HubThatLosesAnswers()
    with elastic_with(hub) as story:
        story.of_size(2)
        story.resize(+2)
        keys = {asked["key"] for asked in hub.opened.values()}
        assert len(keys) == 2
        assert all(key.startswith(story.run.request()["key"]) for key in keys)


@pytest.mark.parametrize("stage", [True, False])
def test_companions_of_a_staged_run_are_asked_for_with_their_data(stage: bool) -> None:
    hub = HubThatLosesAnswers()
    with elastic_with(hub, stage=stage) as story:
        story.of_size(2)
        story.resize(+1)
        story.of_size(3)
        assert [asked.get("stage", False) for asked in hub.opened.values()] == [stage]
        assert story.run.request()["start_limit"] == (3720.0 if stage else 120.0), "ranks wait for the data"


def test_a_hub_that_does_not_answer_at_the_start_is_asked_again_and_gives_it_once() -> None:
    hub = HubThatLosesAnswers(lost=3)
    with elastic_with(hub, ranks=3, gpus=1, limits=(3, 4)) as story:
        story.of_size(3)
        assert len(hub.opened) == 1
    assert hub.closed == list(hub.opened)


def test_a_run_is_stopped_while_the_hub_does_not_answer_and_leaves_nothing() -> None:
    hub = HubThatLosesAnswers(lost=1 << 30)
    with elastic_with(hub, ranks=3, gpus=1, limits=(3, 4)) as story:
        story.until(lambda _: hub.opened)
        story.conductor.end("stop", "The run was stopped.")
        assert story.end()["state"] == "interrupted"
    assert hub.closed == list(hub.opened)


def test_one_that_was_opened_though_the_answer_was_lost_is_given_back() -> None:
    hub = HubThatLosesAnswers()
    with elastic_with(hub) as story:
        story.of_size(2)
        hub.lost = 1
        with pytest.raises(RequestRefused, match="does not answer"):
            story.resize(+1)
        story.until(lambda _: hub.closed == list(hub.opened))
        story.resize(+1)
        story.of_size(3)
        assert len(hub.closed) == 1, "the one that joined stays"


def test_one_that_is_opened_while_the_run_ends_is_given_back() -> None:
    hub = HubThatLosesAnswers()
    hub.held = threading.Event()

    def resize() -> None:
        with contextlib.suppress(RequestRefused):
            story.resize(+2)

    with elastic_with(hub) as story:
        story.of_size(2)
        asking = threading.Thread(target=resize)
        asking.start()
        assert hub.asked.wait(5)
        story.conductor.end("stop", "The run was stopped.")
        assert story.conductor._companions._closing.wait(20)  # its workers have ended, and what it had is given back
        hub.held.set()
        asking.join(5)
        story.end()
    assert len(hub.opened) == 1, "nothing more is asked for at the end"
    assert hub.closed == list(hub.opened)
    with pytest.raises(RequestRefused, match="is ending"):
        story.conductor._companions.open(1)


def test_a_worker_for_which_slurm_does_not_answer_is_tried_again_and_the_others_train_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elastic_run, "SLURM_RETRY_DELAY", 0.2)
    with elastic_with(HubThatLosesAnswers()) as story:
        story.of_size(2)
        story.broker.busy = ["w2-0-0", "w2-1-0", "w2-2-0", "w2-3-0"]
        story.resize(+1)
        story.until(lambda state: "Rank 2 could not be started (Slurm does not answer.)" in state["message"])
        story.of_size(3)
        assert story.hub.closed == []
        story.broker.steps["w2-4-0"].signal("KILL")
        story.until(lambda _: "w2-5-0" in story.broker.steps)  # tries count as no lives


def test_a_worker_that_cannot_be_started_is_done_without_and_its_companion_given_back() -> None:
    with elastic_with(HubThatLosesAnswers()) as story:
        story.of_size(2)
        story.broker.busy = ["w2-0-0"]
        story.resize(+1)
        story.until(lambda state: "could not be started" in state["message"])
        assert story.resize(-1) == "1 withdrawn before their start."
        story.until(lambda _: story.hub.closed == list(story.hub.opened))
        assert len(story.until(lambda state: not state["companions"])["nodes"]) == 2


def test_a_run_is_stopped_and_answers_while_slurm_takes_its_time_for_a_start() -> None:
    with elastic_with(HubThatLosesAnswers()) as story:
        story.of_size(2)
        story.broker.slow = threading.Event()
        story.resize(+1)
        assert story.broker.starting.wait(10)
        assert story.resize(-1) == "1 withdrawn before their start.", "the lock is free"
        began = time.monotonic()
        story.conductor.end("stop", "The run was stopped.")
        assert story.end()["state"] == "interrupted"
        assert time.monotonic() < began + 8
        story.broker.slow.set()
        time.sleep(0.5)  # it starts now, and is ended when the story is over


def test_slurm_that_does_not_answer_when_nobody_is_there_ends_the_run() -> None:
    class Broker(BrokerThatSlurmDoesNotAnswer):
        def start(self, step: Step, out: int, err: int) -> RunningStep:
            raise NoBroker("Pyxis cannot.")

    with running(broker=Broker) as story:
        state = story.end()
        assert (state["state"], state["message"]) == ("failed", "Pyxis cannot.")


# -- a run with a fixed number of ranks -------------------------------------------------------------------------------


def test_a_name_that_is_used_again_gets_a_companion_of_its_own(hub: HubThatLosesAnswers) -> None:
    for _ in range(2):
        conducted = fixed(hub, name="again")
        assert end_of(conducted)["state"] == "finished"
        shutil.rmtree(conducted[0].run.folder)
    assert len(hub.closed) == len(hub.opened) == 2


#: The GPU of rank 1 is broken when the run begins, or its rank fails for a reason that is not the node's.
BROKEN = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["CARME_RANK"] == "1":
    raise RuntimeError("CUDA error: MESSAGE")
"""


@pytest.mark.parametrize("others", [True, False])
def test_a_run_whose_gpu_is_broken_continues_on_other_nodes_where_there_are_any(
    hub: HubThatLosesAnswers, others: bool
) -> None:
    hub.excludes = others
    cell = BROKEN.replace("MESSAGE", "uncorrectable ECC error encountered")
    conducted = fixed(hub, cell, max_restarts=1)
    assert end_of(conducted)["state"] == "finished"
    first, second = hub.opened.values()
    assert (first["exclude"], second["exclude"]) == (set(), {"c9"} if others else set())
    assert hub.closed == list(hub.opened)
    assert second["replaces"] == hub.closed[0]
    assert (first["key"] == second["key"], second["key"].endswith("-any")) == (False, not others)
    assert "[carme] Restart 1 of 1, without c9: RuntimeError in rank 1 on c9" in conducted[0].run.log(0)


def test_a_node_that_is_known_as_bad_costs_no_further_companion(hub: HubThatLosesAnswers) -> None:
    hub.excludes = False
    cell = BROKEN.replace('== "0"', '< "2"').replace("MESSAGE", "uncorrectable ECC error encountered")
    assert end_of(fixed(hub, cell, max_restarts=2))["state"] == "finished"
    assert len(hub.opened) == 2, "the hub has no other node"


def test_an_older_hub_gives_another_companion_all_the_same(hub: HubThatLosesAnswers) -> None:
    hub.excludes, hub.older = False, True
    cell = BROKEN.replace("MESSAGE", "uncorrectable ECC error encountered")
    assert end_of(fixed(hub, cell, max_restarts=1))["state"] == "finished"
    assert [asked["replaces"] for asked in hub.opened.values()] == ["", ""]


def test_a_run_whose_code_fails_continues_where_it_is(hub: HubThatLosesAnswers) -> None:
    conducted = fixed(hub, BROKEN.replace("MESSAGE", "device-side assert triggered"), max_restarts=1)
    assert end_of(conducted)["state"] == "finished"
    assert len(hub.opened) == 1
    assert "[carme] Restart 1 of 1: RuntimeError in rank 1 on c9" in conducted[0].run.log(0)


def test_a_companion_beside_ranks_in_the_session_is_on_other_nodes_where_the_nodes_were_counted(
    hub: HubThatLosesAnswers,
) -> None:
    for other_nodes in (True, False):
        state = end_of(fixed(hub, nodes=2, own=(1, 1), other_nodes=other_nodes))
        assert (state["state"], [rank["node"][:1] for rank in state["ranks"]]) == ("finished", ["n", "c"]), state
    first, second = hub.opened.values()
    assert (first["exclude"], second["exclude"]) == ({"n1"}, set())


def test_a_lost_answer_is_asked_for_until_it_comes(hub: HubThatLosesAnswers) -> None:
    hub.lost = 5
    assert end_of(fixed(hub))["state"] == "finished"
    assert hub.closed == list(hub.opened)
    assert len(hub.opened) == 1


def test_what_was_opened_without_an_answer_goes_when_the_run_is_stopped(hub: HubThatLosesAnswers) -> None:
    hub.lost = 1 << 30
    hub.opened["another"] = {"name": "another", "key": "", "at": time.monotonic()}
    conductor, thread = fixed(hub)
    assert hub.asked.wait(5)
    end = time.monotonic() + 20
    while "does not answer" not in conductor.state.get()["message"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    hub.down = 2
    conductor.end("stop", "The run was stopped.")
    assert end_of((conductor, thread))["message"] == "The run was stopped."
    assert [*hub.closed, "another"] == sorted(hub.opened, key="another".__eq__)


def test_slurm_that_does_not_answer_once_when_a_companion_starts_ends_no_run(hub: HubThatLosesAnswers) -> None:
    conductor, thread = fixed(hub)
    conductor.broker.silent = 3  # type: ignore[attr-defined]
    assert end_of((conductor, thread))["state"] == "finished"


def test_the_error_of_a_rank_is_said_though_slurm_does_not_answer(hub: HubThatLosesAnswers) -> None:
    cell = "import time\nfrom pathlib import Path\nPath('begun').touch()\n"
    cell += "while not Path('go').exists(): time.sleep(0.01)\nraise ValueError('bad picture')"
    conductor, thread = fixed(hub, cell)
    end = time.monotonic() + 20
    while not Path("begun").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    conductor.broker.silent = 1 << 30  # type: ignore[attr-defined]
    Path("go").touch()
    state = end_of((conductor, thread))
    assert state["message"].startswith("ValueError in rank")
    assert "bad picture" in state["error"]["traceback"]


def test_the_time_limit_of_a_run_that_waited_for_its_companion_counts_from_its_start(hub: HubThatLosesAnswers) -> None:
    hub.wait, hub.ends = 5.0, time.time() + 3600
    cell = "import time\nfrom carme_hub.training import here\n"
    cell += "while here.time_left() > 3600: time.sleep(0.05)\nprint(time.time() + here.time_left())\n"
    conducted = fixed(hub, cell, seconds=600)
    assert end_of(conducted)["state"] == "finished"
    conductor = conducted[0]
    end = time.time() - time.monotonic() + conductor.started + 600
    assert abs(float(conductor.run.log(0)) - end) < 2, "it was told of an end that did not know of the wait"
