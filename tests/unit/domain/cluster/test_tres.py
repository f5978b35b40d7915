"""Slurm's small languages: what 22.05 and 24.11 print is read, what none of them prints is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.cluster import tres
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("node1", ("node1",)),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("gpu[08-10],login", ("gpu08", "gpu09", "gpu10", "login")),
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
        ("a[1-2]-ib", ("a1-ib", "a2-ib")),
        # The order is Slurm's: a job begins on the first of its nodes.
        ("login,gpu[08-09],n[2,1]", ("login", "gpu08", "gpu09", "n2", "n1")),
        ("n[9-09]", ("n9",)),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert tres.hosts_of(text) == names


@pytest.mark.parametrize(
    "text", ["node[1-3", "node]1", "node[a-b]", "node[3-1]", "node[1-999999999]", "n[1-9999]m[1-9999]"]
)
def test_a_host_list_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        tres.hosts_of(text)


@given(st.text(alphabet="node[]-,0123456789", max_size=30))
def test_a_host_list_is_read_or_refused_but_never_runs_away(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(tres.hosts_of(text)) <= 100_000


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("cpu=1,mem=512M,node=1,billing=1", NO_GPUS),
        ("cpu=1,gres/gpu=4,gres/gpu:a100=4", Gpus("a100", 4)),
        ("cpu=1,gres/gpu=1,gres/gpu:1g.10gb=1", Gpus("1g.10gb", 1)),
        ("cpu=1,gres/gpu=2", Gpus("gpu", 2)),
        ("cpu=1,gres/shard=2", Gpus("shard", 2)),
        ("gres/gpu=0,gres/shard=2", Gpus("shard", 2)),
        ("gres/gpu=4,gres/shard=16", Gpus("gpu", 4)),
        ("", NO_GPUS),
    ],
)
def test_gpus_of_a_tres_string(text: str, gpus: Gpus) -> None:
    assert tres.gpus_of_tres(text) == gpus


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:4(S:0-1),shard:a100:16", {"a100": 4}),
        ("gpu:1g.10gb:7,gpu:3g.40gb:2", {"1g.10gb": 7, "3g.40gb": 2}),
        ("gres:gpu:a100:2", {"a100": 2}),
        ("gres/gpu:a100:2", {"a100": 2}),
        ("gres/gpu:a100=2", {"a100": 2}),
        ("gpu:2", {"gpu": 2}),
        ("gpu:a100", {"a100": 1}),
        ("gpu", {"gpu": 1}),
        ("(null)", {}),
        ("N/A", {}),
    ],
)
def test_gpus_of_a_gres_string(text: str, gpus: dict[str, int]) -> None:
    assert tres.gpus_of_gres(text) == gpus


def test_the_request_says_the_type_where_accounting_does_not_track_it() -> None:
    assert tres.job_gpus("cpu=1,gres/gpu=2", "gres:gpu:a100:2", "N/A", "N/A", 1) == Gpus("a100", 2)
    assert tres.job_gpus("cpu=1", "gres/gpu:h100:2", "N/A", "N/A", 3) == Gpus("h100", 6)
    assert tres.job_gpus("cpu=4,gres/gpu=4", "N/A", "gres:gpu:a100:4", "N/A", 2) == Gpus("a100", 4)


def test_shards_are_what_accounting_counts_and_not_what_is_asked() -> None:
    assert tres.job_gpus("cpu=1,gres/shard=2", "gres:shard:2", "N/A", "N/A", 1) == Gpus("shard", 2)
    # Where accounting does not track shards nothing is charged in the end, so nothing is running use either.
    assert tres.job_gpus("cpu=1", "gres:shard:2", "N/A", "N/A", 1) == NO_GPUS


def test_shards_of_a_node_are_read_by_the_type_of_their_gpus() -> None:
    assert tres.gpus_of_gres("gpu:a100:4(S:0-1),shard:a100:16(S:0-1)", "shard") == {"a100": 16}
    assert tres.gpus_of_gres("gpu:a100:4,gpu:h100:2,shard:12", "shard") == {"gpu": 12}


@pytest.mark.parametrize(
    ("gres", "used", "taken"),
    [
        ("gpu:a100:4", "gpu:a100:1(IDX:0)", {"a100": 1}),
        ("gpu:a100:4", "gpu:a100:0(IDX:N/A)", {}),
        ("gpu:a100:4,shard:a100:16", "gpu:a100:1(IDX:0),shard:a100:1(IDX:1)", {"a100": 2}),
        ("gpu:a100:4,shard:16", "gpu:a100:2(IDX:0-1),shard:3(0/4,0/4,2/4,1/4)", {"a100": 4}),
        ("gpu:1g.10gb:7,gpu:a100:2", "gpu:1g.10gb:3(IDX:0-2),gpu:a100:0(IDX:N/A),shard:0", {"1g.10gb": 3}),
    ],
)
def test_a_gpu_with_a_shard_in_use_is_not_free(gres: str, used: str, taken: dict[str, int]) -> None:
    assert tres.gpus_in_use(gres, used) == taken


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("5:00", 5), ("1:00:00", 60), ("365-00:00:00", 525600), ("1-02", 1560), ("0:30", 1), ("UNLIMITED", 0)],
)
def test_time_limits(text: str, minutes: int) -> None:
    assert tres.minutes_of(text) == minutes


def test_times_by_epoch_and_by_the_calendar_are_the_same() -> None:
    assert tres.time_of("1795229612") == tres.time_of("2026-11-21T02:53:32") == 1795229612
    assert tres.time_of("N/A") == tres.time_of("Unknown") == tres.time_of("NONE") == 0
    with pytest.raises(ValueError):
        tres.time_of("yesterday")


def test_exit_codes_of_squeue_and_sacct_are_the_same() -> None:
    assert tres.exit_of("18688") == tres.exit_of("73:0") == (73, 0)
    assert tres.exit_of("9") == tres.exit_of("0:9") == (0, 9)


@pytest.mark.parametrize("word", ["", "BANANA", "REVOKED", "running", "COMPLETEDX"])
def test_a_state_word_nobody_knows_is_unknown(word: str) -> None:
    assert tres.phase_of(word) is Phase.UNKNOWN


def test_cancelled_by_somebody_is_an_end() -> None:
    assert tres.phase_of("CANCELLED by 1000") is Phase.TERMINAL
