"""What a run beyond its session requests and costs, and how long it waits, is said before anything is requested."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from forged_quotes import HubThatQuotes

from carme_hub.training import distributed, magic
from carme_hub.training.conductor.companion import START_MINUTES
from carme_hub.training.launch import price, start
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.session.companions import Hub, Quote, Refused


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of one node without GPUs, and somebody at its notebook."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    for name in ("SLURM_GPUS_ON_NODE", "CARME_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(start, "_shell", lambda: SimpleNamespace(kernel=True))


def test_what_fits_into_the_session_asks_nobody() -> None:
    assert price.price_of(magic.options_in_line("-n 4"), {"SLURM_JOB_NODELIST": "n1"}) == ""
    two = {"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2"}
    assert price.price_of(magic.options_in_line("-n 2"), two) == ""


def test_price_and_start_of_a_companion_are_said_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = HubThatQuotes(Quote(True, "2 GPU-hours of 10 left, 0.50 EUR", said="starts at about 14:02"))
    monkeypatch.setattr(Hub, "from_environ", lambda: hub)
    two = {"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2"}
    assert price.price_of(magic.options_in_line("-n 4 --time 90s"), two) == (
        "This session has no room for 4 ranks: 2 nodes with 4 GPUs more are requested. "
        "2 GPU-hours of 10 left, 0.50 EUR. Starts at about 14:02."
    )
    size = {"nodes": 2, "gpus": 4, "cpus": 0, "memory_mib": 0}
    assert hub.asked == {**size, "minutes": 2 + START_MINUTES, "exclude": ()}
    hub.answer = Quote(False, "The account has 0.1 GPU-hours left.")
    with pytest.raises(CannotRun, match=r"0\.1 GPU-hours left"):
        start.begin(magic.options_in_line("-n 2 --nodes 2"), cell="pass")
    hub.answer = Refused("Your profile has one node.")
    with pytest.raises(CannotRun, match="one node"):
        start.begin(magic.options_in_line("-n 2 --nodes 2"), cell="pass")
    assert len(distributed.runs()) == 0


ONE = {"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "1", "SLURM_CPUS_ON_NODE": "4"}


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("-n 1", 0),  # it fits into the session
        ("-n 3", 2),  # one of them is that of the session
        ("-n 3 --only-companion", 1),
        ("-n 3 --backend mpi", 1),
        ("-n 3 --dry-run", 1),
        ("-n 6", 2),  # two nodes have three GPUs each in both cases
        ("-n 4 --gpus-per-node 2", 2),  # with the session's GPU there would be three, and as many GPUs to request
        ("-n 2 --nodes 2", 2),
        ("-n 9 --gpus-per-task 0", 0),
        ("-n 2 --elastic 1:4", 0),  # each of its companions has one rank
    ],
)
def test_a_run_beyond_its_session_gets_the_fewest_nodes_that_the_hub_gives(
    line: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = HubThatQuotes(Quote(True, "Costs nothing", gpus_of_one_node=(1, 2, 3, 4)))
    monkeypatch.setattr(Hub, "from_environ", lambda: hub)
    assert price.choose_nodes(magic.options_in_line(line), ONE).nodes == nodes


def test_where_nodes_are_counted_the_price_is_that_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = HubThatQuotes(Quote(True, "Costs nothing", gpus_of_one_node=(1, 2, 3, 4), excludes_nodes=True))
    monkeypatch.setattr(Hub, "from_environ", lambda: hub)
    chosen = price.choose_nodes(magic.options_in_line("-n 3 --nodes 3"), ONE)
    said = price.price_of(chosen, ONE)
    assert said.startswith("This session has room for 1 of 3 ranks: 2 nodes with 2 GPUs more are requested."), said
    assert (hub.asked["nodes"], hub.asked["gpus"], hub.asked["exclude"]) == (2, 2, ("n1",))


def test_a_refusal_names_the_option_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = HubThatQuotes(Quote(False, "“A100” gives 1 to 4 on each node.", gpus_of_one_node=(1, 2, 3, 4)))
    monkeypatch.setattr(Hub, "from_environ", lambda: hub)
    with pytest.raises(CannotRun, match=r"^“A100” gives 1 to 4 on each node\. Use --nodes 2\.$"):
        price.price_of(magic.options_in_line("-n 6 --nodes 1"), ONE)
    hub.answer = Quote(False, "The account has 0.1 GPU-hours left.", gpus_of_one_node=(1, 2, 3, 4))
    with pytest.raises(CannotRun, match=r"GPU-hours left\.$"):
        price.price_of(magic.options_in_line("-n 6 --nodes 2"), ONE)
    with pytest.raises(CannotRun, match=r"2 ranks with 8 GPUs each cannot be divided .* may have 1, 2, 3, 4 GPUs\.$"):
        price.choose_nodes(magic.options_in_line("-n 2 --gpus-per-task 8"), ONE)


WAITS = "It may wait for GPUs that others use, or wait for."


class HubWithFreeGpus:
    """A hub that gives up to four GPUs on a node, of which so many are free."""

    def __init__(self, free: int) -> None:
        self.free, self.asked = free, 0

    def quote(self, *, gpus: int = 0, **_more: object) -> Quote:
        self.asked += 1
        return Quote(True, "Costs nothing", gpus_of_one_node=(1, 2, 3, 4), starts_now=gpus <= self.free)


@pytest.mark.parametrize(
    ("line", "free", "said"),
    [
        ("-n 4", 4, ""),
        ("-n 4", 3, ""),  # with the session's own
        ("-n 4", 2, f"{WAITS} With -n 3 it would start now."),
        ("-n 4 --only-companion", 3, f"{WAITS} With -n 3 it would start now."),
        ("-n 4", 0, f"{WAITS} With -n 1 it would start now."),  # in the session
        (
            "-n 6 --nodes 3",
            5,
            f"{WAITS} With -n 5 and without --nodes it would start now.",
        ),
        ("-n 2 --gpus-per-task 2", 3, f"{WAITS} With -n 1 it would start now."),
        ("-n 2 --gpus-per-task 2", 1, WAITS),
        ("-n 4 --gpus-per-node 1", 2, f"{WAITS} With -n 3 it would start now."),
        ("-n 4 --elastic 1:4", 0, ""),
        ("-n 1", 0, ""),
    ],
)
def test_a_run_that_would_wait_says_what_would_start_now(
    line: str, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = HubWithFreeGpus(free)
    monkeypatch.setattr(Hub, "from_environ", lambda: hub)
    options = magic.options_in_line(line)
    chosen = price.choose_nodes(options, ONE)
    assert price.wait_of(chosen, options, ONE) == said
    assert hub.asked < 6


@pytest.mark.parametrize(
    ("line", "answer", "runs"),
    [
        ("-n 2 --nodes 2", "n", False),
        ("-n 2 --nodes 2", "", False),
        ("-n 2 --nodes 2", NotImplementedError(), True),  # nbconvert
        ("-n 2 --nodes 2 --wait", AssertionError("nobody is asked"), True),
        ("-n 2 --nodes 2", "y", True),
    ],
)
def test_whoever_is_there_is_asked_before_a_run_waits_for_gpus_of_others(
    monkeypatch: pytest.MonkeyPatch, line: str, answer: str | Exception, runs: bool
) -> None:
    monkeypatch.setattr(Hub, "from_environ", lambda: HubThatQuotes(Quote(True, "Costs nothing", starts_now=False)))

    def reply(_prompt: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", reply)
    began: list[object] = []
    monkeypatch.setattr(start.new_run, "launch", began.append)
    if runs:
        start.begin(magic.options_in_line(line), cell="pass")
    else:
        with pytest.raises(CannotRun, match=r"^Nothing was requested\."):
            start.begin(magic.options_in_line(line), cell="pass")
    assert bool(began) is runs
