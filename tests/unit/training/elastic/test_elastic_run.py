"""A run whose workers come and go, with real processes on this machine; Slurm, the hub and Horovod are forged."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forged_horovod
import pytest
from started_here import BrokerThatStartsHere, StepHere

from carme_hub.training.elastic import elastic_run, horovod
from carme_hub.training.elastic import resize as elastic_resize
from carme_hub.training.elastic.elastic_run import ElasticRun
from carme_hub.training.launch.new_run import create
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import ENDED, State
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Companion, NoHub, Quote, Refused
from carme_hub.training.session.step_broker import Allocation, NotReady, RunningStep, Step


class HubThatGivesLater:
    """Gives companions that run after a moment, until it refuses."""

    def __init__(self) -> None:
        self.opened: dict[str, dict[str, Any]] = {}
        self.ended: set[str] = set()
        self.closed: list[str] = []
        self.wait, self.most = 0.2, 9
        self.down = 0
        self.ends = 0.0
        self.why = "A job with a higher priority took the place. Start again."
        self.price = Quote(allowed=True, message="Costs up to 0.5 GPU-hours", gpu_seconds=1800, said="starts now")
        self.silent: threading.Event | None = None
        self.away, self.looks = False, 0

    def quote(self, **asked: int) -> Quote:
        if self.silent is not None:
            self.silent.wait(20)
        return self.price

    def open(self, **asked: Any) -> Companion:
        if len(self.opened) >= self.most:
            raise Refused("Your account has no GPU-time left.")
        id = str(uuid.uuid4())
        self.opened[id] = {**asked, "at": time.monotonic()}
        return Companion(id, "waiting", "starts soon")

    def list(self) -> tuple[Companion, ...]:
        if self.away:
            raise NoHub("The hub does not answer.")
        self.looks += 1
        return tuple(
            Companion(id, self.state(id), self.why if id in self.ended else "starts soon", ends=self.ends)
            for id in tuple(self.opened)  # another thread may open one meanwhile
        )

    def state(self, id: str) -> str:
        if id in self.ended or id in self.closed:
            return "ended"
        return "running" if time.monotonic() > self.opened[id]["at"] + self.wait else "waiting"

    def close(self, id: str) -> Companion:
        if self.down:
            self.down -= 1
            raise NoHub("The hub does not answer.")
        self.closed.append(id)
        return Companion(id, "ended")


class BrokerWithCompanions(BrokerThatStartsHere):
    """Starts workers here, and keeps them to be killed."""

    def __init__(self, hub: HubThatGivesLater, nodes: int = 2, gpus: int = 0) -> None:
        super().__init__(nodes, gpus)
        self.hub, self.steps = hub, {}  # type: tuple[HubThatGivesLater, dict[str, StepHere]]
        self.suspended = False

    def allocation(self, companion: str = "") -> Allocation:
        if not companion:
            return super().allocation()
        if self.hub.state(companion) != "running":
            raise NotReady("It does not run.")
        return Allocation(2, (f"c{list(self.hub.opened).index(companion)}",), 2, 1, "a100", self.hub.ends, "127.0.0.1")

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        if step.companion and (self.suspended or self.hub.state(step.companion) != "running"):
            raise NotReady("It does not run.")
        self.steps[step.slot] = StepHere(step, step.nodes, step.gpus_per_node, out, err)
        return self.steps[step.slot]


class Story:
    """One run that is conducted in a thread."""

    def __init__(self, conductor: ElasticRun, hub: HubThatGivesLater, broker: BrokerWithCompanions) -> None:
        self.conductor, self.hub, self.broker, self.run = conductor, hub, broker, conductor.run

    def until(self, done: Callable[[State], object], limit: float = 20) -> State:
        end = time.monotonic() + limit
        while not done(state := self.conductor.state.get()):
            assert time.monotonic() < end, state
            assert state["state"] not in ENDED, (state, self.run.log(0))
            time.sleep(0.02)
        return state

    def steps(self) -> dict[int, set[tuple[int, int]]]:
        """Return who took each step last: ranks and sizes."""
        found: dict[int, set[tuple[int, int]]] = {}
        for path in self.run.folder.glob("seen-*.jsonl"):
            for line in path.read_text().splitlines():
                said = json.loads(line)
                found.setdefault(said["step"], set()).add((said["rank"], said["size"]))
        return found

    def of_size(self, size: int) -> None:
        """Wait until so many have taken a step together."""
        self.until(lambda _: any((0, size) in who and (size - 1, size) in who for who in self.steps().values()))

    def grown(self) -> str:
        """Wait until a third rank, in a companion, trains along; return the companion's id."""
        self.of_size(2)
        self.resize(+1)
        self.of_size(3)
        [companion] = self.hub.opened
        return companion

    def resize(self, change: int) -> str:
        return str(self.conductor.ops["resize"]({"change": change})["message"])

    def end(self, limit: float = 20) -> State:
        end = time.monotonic() + limit
        while (state := self.conductor.state.get())["state"] not in ENDED:
            assert time.monotonic() < end, state
            time.sleep(0.02)
        return state


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(forged_horovod.write(tmp_path / "lib")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(elastic_run, "RESTART_DELAY", 0.1)
    monkeypatch.setattr(elastic_resize, "POLL_INTERVAL", 0.1)
    monkeypatch.setattr(elastic_resize, "RETRY_INTERVAL", 0.1)


@contextmanager
def running(
    cell: str | None = None,
    *,
    ranks: int = 2,
    limits: tuple[int, int] = (2, 4),
    gpus: int = 0,
    each: int | None = None,
    most: int = 9,
    hub: HubThatGivesLater | None = None,
    broker: type[BrokerWithCompanions] = BrokerWithCompanions,
    stage: bool = False,
    **more: Any,
) -> Iterator[Story]:
    """Conduct a run to its end; one that goes on when the story is told is stopped."""
    asked = RunOptions(ranks, backend="horovod", elastic=limits, detach=True, gpus_per_task=each, stage=stage)
    code = None if "call" in more else forged_horovod.CELL + (cell or "train(10**9)")
    hub = hub or HubThatGivesLater()
    hub.most = most
    slurm = broker(hub, gpus=gpus)
    conductor = ElasticRun(create(asked, cell=code, **more), slurm)
    conductor._companions._connect = lambda: hub  # type: ignore[assignment, return-value]
    thread = threading.Thread(target=conductor.conduct)
    thread.start()
    try:
        yield Story(conductor, hub, slurm)
    finally:
        conductor.end("stop", "The story is over.")
        thread.join(20)
        assert not thread.is_alive()
        for step in slurm.steps.values():
            assert step.wait(5) is not None, "a worker is left"


def test_grow_give_back_and_lose_one_and_every_step_is_taken() -> None:
    with running() as story:
        story.of_size(2)
        assert "requested" in story.resize(+2)
        story.of_size(4)
        assert len(story.until(lambda state: len(state["nodes"]) == 4)["companions"]) == 2
        assert "leaves at the next commit" in story.resize(-1)
        story.of_size(3)
        story.until(lambda _: story.hub.closed == list(story.hub.opened)[-1:])
        state = story.until(lambda state: "given back" in state["message"])
        story.broker.steps["w1-0-0"].signal("KILL")
        # Who came first of the two is rank 0.
        said = story.until(lambda state: "lost" in state["message"])["message"]
        assert re.search(r"Rank (1|0 \(log 1\)) on n2 was lost: it was killed by SIGKILL", said)
        story.until(lambda _: "w1-1-0" in story.broker.steps)
        (story.run.folder / "enough").touch()
        state = story.end()
        assert (state["state"], state["error"]) == ("finished", None)
        steps = story.steps()
        taken = int((story.run.folder / "kept").read_text())
        assert taken > 3
        assert set(range(1, taken + 1)) <= set(steps), "a step is missing"
        for step, who in steps.items():
            assert step > taken or any({(rank, size) for rank in range(size)} <= who for size in (2, 3, 4)), (step, who)
        assert sorted(story.hub.closed) == sorted(story.hub.opened)


def test_an_error_of_the_code_ends_the_run_with_its_rank() -> None:
    cell = "def stumble(step):\n    if step == 5 and here.rank == 1:\n        raise ValueError('bad picture')\n"
    with running(cell + "train(10**9, stumble)") as story:
        state = story.end()
        assert state["state"] == "failed"
        assert (state["error"]["type"], state["error"]["message"]) == ("ValueError", "bad picture")
        assert "raise ValueError" in state["error"]["traceback"]


def test_below_the_fewest_it_waits_says_so_and_goes_on_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_run, "MAX_STARTS", 1)  # a lost one does not come back
    with running() as story:
        story.of_size(2)
        story.broker.steps["w1-0-0"].signal("KILL")
        state = story.until(lambda state: state["state"] == "waiting")
        assert "Waiting for 1 more rank" in state["message"]
        before = len(story.steps())
        assert "session's own job" in story.resize(+1)
        story.until(lambda state: state["state"] == "running" and len(story.steps()) > before + 5)


def test_companions_that_wait_do_not_keep_the_others_from_training() -> None:
    with running() as story:
        story.of_size(2)
        story.hub.wait = 1e9
        story.resize(+1)
        before = len(story.steps())
        state = story.until(lambda state: len(story.steps()) > before + 5)
        assert "1 more rank waits for GPUs. starts soon" in state["message"]
        assert "withdrawn" in story.resize(-1)
        story.until(lambda _: story.hub.closed == list(story.hub.opened))


def test_what_cannot_be_is_refused_and_the_run_goes_on() -> None:
    with running() as story:
        story.of_size(2)
        with pytest.raises(RequestRefused, match="2:4 does not allow 5"):
            story.resize(+3)
        with pytest.raises(RequestRefused, match="2:4 does not allow 1"):
            story.resize(-1)
        with pytest.raises(RequestRefused, match="0 changes nothing"):
            story.resize(0)
        story.hub.most = 0
        with pytest.raises(RequestRefused, match="no GPU-time left"):
            story.resize(+1)
        assert story.conductor.state.get()["state"] == "running"


def test_a_companion_that_ends_is_missed_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "POLL_INTERVAL", 0.1)
    with running() as story:
        companion = story.grown()
        story.hub.ended.add(companion)
        story.broker.steps["w2-0-0"].signal("TERM")
        said = "The companion of rank 2 has ended: a job with a higher priority took the place."
        state = story.until(lambda state: said in state["message"])
        assert state["message"].startswith("Rank 2 on c0 was lost")
        assert state["companions"] == []
        story.until(lambda state: state["generation"] == 3)
        assert story.hub.closed == [], "how it ended is for the hub to find out"


def test_a_companion_that_is_gone_for_us_and_not_for_the_hub_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_resize, "END_SEEN_TIMEOUT", 0.3)
    with running() as story:
        story.grown()
        story.broker.suspended = True
        story.broker.steps["w2-0-0"].signal("TERM")
        story.until(lambda state: "The companion of rank 2 has ended." in state["message"])
        story.until(lambda _: story.hub.closed == list(story.hub.opened))


def test_one_that_was_lost_while_the_hub_was_away_is_for_the_hub_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_resize, "END_SEEN_TIMEOUT", 3.0)
    with running() as story:
        companion = story.grown()
        story.hub.away = story.broker.suspended = True
        story.broker.steps["w2-0-0"].signal("TERM")
        story.until(lambda state: "The companion of rank 2 has ended." in state["message"])
        time.sleep(3.5)
        looks, story.hub.away = story.hub.looks, False
        story.until(lambda _: story.hub.looks > looks + 1)  # it comes back, and knows a moment later
        story.hub.ended.add(companion)
        story.until(lambda state: "has ended: a job with a higher priority took the place." in state["message"])
        assert story.hub.closed == []


def test_a_companion_whose_time_is_nearly_over_is_left_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_run, "LEAVE_BEFORE_END", 20.0)
    with running() as story:
        story.of_size(2)
        story.hub.ends = time.time() + 1000
        story.resize(+1)
        story.of_size(3)
        story.hub.ends = time.time() + 25  # somebody moved it
        said = "was given back: the time of its companion is nearly over."
        story.until(lambda state: said in state["message"])
        assert time.time() < story.hub.ends
        story.until(lambda state: state["generation"] == 3)
        story.until(lambda _: story.hub.closed == list(story.hub.opened))


def test_one_that_does_not_leave_is_ended_and_its_companion_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_run, "LEAVE_TIMEOUT", 0.5)
    cell = "def stumble(step):\n    (Path('stop').exists() and time.sleep(3))\n"
    with running(cell + "train(10**9, stumble)") as story:
        story.grown()
        Path("stop").touch()
        story.hub.down = 2  # it answers a moment later
        story.resize(-1)
        began = time.monotonic()
        story.until(lambda _: story.hub.closed == list(story.hub.opened))
        assert time.monotonic() < began + 10


def test_each_rank_at_the_end_has_a_result() -> None:
    names: dict[str, Any] = {}
    with running(call=(_trained, (forged_horovod.CELL, 30), names)) as story:
        assert story.end()["state"] == "finished"
        assert [story.run.result(rank) for rank in range(2)] == [(30, 0, 2), (30, 1, 2)]


def _trained(code: str, steps: int) -> Any:
    names: dict[str, Any] = {}
    exec(code, names)
    return names["train"](steps)


def test_each_worker_has_its_own_gpus() -> None:
    cell = "print('GPUs', os.environ['CUDA_VISIBLE_DEVICES'])\ntrain(3)"
    with running(cell, ranks=4, gpus=2) as story:
        state = story.end()
        assert state["state"] == "finished"
        found = [story.run.log(number).split("GPUs ")[1].split()[0] for number in range(4)]
        assert found == ["0", "1", "0", "1"]
        assert sorted({entry["node"] for entry in state["ranks"]}) == ["n1", "n2"]


def test_more_ranks_than_the_session_has_gpus_for_are_asked_for_at_the_start() -> None:
    with running("train(10**9)", ranks=3, gpus=1) as story:
        story.of_size(3)
        [asked] = story.hub.opened.values()
        assert (asked["nodes"], asked["gpus"]) == (1, 1)


def test_a_hub_that_says_no_at_the_start_ends_a_run_that_is_too_small_then() -> None:
    with running(ranks=3, gpus=1, limits=(3, 4), most=0) as story:
        state = story.end()
        assert (state["state"], state["message"]) == ("failed", "Your account has no GPU-time left.")


def test_nobody_left_is_said_with_how_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_run, "MAX_STARTS", 1)
    with running() as story:
        story.of_size(2)
        for step in list(story.broker.steps.values()):
            step.signal("KILL")
        state = story.end()
        assert state["state"] == "failed"
        assert state["message"].startswith("No rank is left. Rank ")


def test_who_is_on_the_same_gpus_is_said() -> None:
    other = create(RunOptions(1, name="beside"), cell="pass")
    write_json(other.folder / "state.json", other.state() | {"state": "running", "own_gpus": 1, "nodes": ["n1"]})
    with running(gpus=2) as story:
        state = story.until(lambda state: state["own_gpus"] == 2)
        assert state["message"].startswith("It shares GPUs of the session with beside: each may be slower.")


def test_each_worker_has_its_share_of_the_processors_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cell = "print('THREADS', os.environ['OMP_NUM_THREADS'])\ntrain(3)"
    with running(cell, ranks=5, limits=(5, 5), gpus=2) as story:
        assert story.end()["state"] == "finished"
        found = [int(story.run.log(number).split("THREADS ")[1].split()[0]) for number in range(5)]
        all_of_it = len(os.sched_getaffinity(0))
        assert found == [max(1, all_of_it // 2)] * 4 + [all_of_it], "two on each node, and one in a companion"
