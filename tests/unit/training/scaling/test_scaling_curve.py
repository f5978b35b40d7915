"""Speed-up, efficiency, error bars and the knee are what they say, whatever was measured."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_parts import blocks, curve, curve_of, part, run

from carme_hub.training.scaling.curve import BadCurve, Curve, find_knee, mean_of, share_of, summarize_run

RANKS = st.lists(st.integers(1, 64), min_size=2, max_size=8, unique=True).map(sorted)


def test_a_run_is_as_fast_as_its_slowest_rank_in_each_block() -> None:
    parts = [part(0, blocks(1.0, 1.0, 1.0)), part(1, blocks(2.0, 2.0, 2.0))]
    assert summarize_run(parts, batch=10, each=10).rate == pytest.approx(200 / 2.0)


def test_a_burst_of_other_work_in_one_block_changes_nothing() -> None:
    calm = summarize_run([part(0, blocks(1, 1, 1), blocks(0.5, 0.5, 0.5))], batch=10, each=10)
    disturbed = summarize_run([part(0, blocks(1, 30, 1), blocks(0.5, 0.5, 20))], batch=10, each=10)
    assert (disturbed.rate, disturbed.quiet) == (calm.rate, calm.quiet) == (100, 0.5)


def test_lost_time_is_told_apart_into_communication_and_waiting() -> None:
    """Alone the ranks need 1 s and 3 s, together 4 s: 1 s is communication, and the mean rank waits 1 s."""
    parts = [part(0, blocks(4.0), blocks(1.0)), part(1, blocks(4.0), blocks(3.0))]
    found = summarize_run(parts, batch=10, each=10)
    assert (found.quiet, found.communication, found.waiting) == (pytest.approx(0.5), pytest.approx(0.25), 0.25)
    assert found.own == pytest.approx((100 / 1 + 100 / 3) / 2)


def test_a_lone_rank_communicates_with_nobody_however_slow_its_library_makes_it() -> None:
    found = summarize_run([part(0, blocks(2.0), blocks(1.0))], batch=10, each=10)
    assert (found.quiet, found.communication, found.waiting) == (0.5, 0.0, 0.0)


def test_loading_is_the_share_of_all_ranks_time() -> None:
    parts = [part(0, blocks(1.0, loading=0.5)), part(1, blocks(1.0, loading=0.0))]
    assert summarize_run(parts, batch=10, each=10).loading == pytest.approx(0.25)


def test_what_has_no_blocks_alone_says_nothing_of_communication() -> None:
    found = summarize_run([part(0, blocks(1.0))], batch=10, each=10)
    assert (found.own, found.quiet, found.communication, found.waiting) == (None, None, None, None)


def test_nodes_are_counted() -> None:
    parts = [part(n, blocks(1.0), node=f"n{n // 2}") for n in range(4)]
    assert summarize_run(parts, batch=10, each=10).nodes == 2


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [part(0, ())],
        [part(0, blocks(1.0)), part(1, blocks(1.0, 1.0))],
        [part(0, blocks(1.0), blocks(1.0)), part(1, blocks(1.0))],
        [part(0, blocks(0.0))],
        [part(0, blocks(1.0, samples=0))],
    ],
)
def test_ranks_that_did_not_measure_the_same_are_no_run(parts: list[object]) -> None:
    with pytest.raises(BadCurve):
        summarize_run(parts, batch=10, each=10)  # type: ignore[arg-type]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.floats(0.01, 100))
def test_shares_of_a_step_never_exceed_it(alone: list[float], together: float) -> None:
    parts = [part(n, blocks(together), blocks(seconds)) for n, seconds in enumerate(alone)]
    found = summarize_run(parts, batch=10, each=10)
    assert found.communication is not None
    assert found.waiting is not None
    assert 0 <= found.communication <= 1
    assert found.communication + found.waiting <= 1 + 1e-9


@given(st.integers(1, 5000), st.integers(1, 64), st.sampled_from(["strong", "weak"]))
def test_a_strong_batch_is_shared_out_whole_and_a_weak_one_is_everybodys(batch: int, size: int, mode: str) -> None:
    shares = [share_of(batch, mode, rank, size) for rank in range(size)]
    assert sum(shares) == (batch if mode == "strong" else batch * size)
    assert max(shares) - min(shares) <= 1


def test_the_error_bar_is_students() -> None:
    found = mean_of([9.0, 10.0, 11.0])
    assert found is not None
    assert found.error == pytest.approx(4.303 * 1.0 / math.sqrt(3))
    assert (found.mean, found.least, found.most, found.count) == (10, 9, 11, 3)
    assert mean_of([5.0]) is not None
    assert mean_of([5.0]).error is None  # type: ignore[union-attr]
    assert mean_of([]) is None
    assert mean_of([1.0, 9.0]).error is None, "two repeats say too little"  # type: ignore[union-attr]


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=50))
def test_the_error_bar_shrinks_with_the_scatter_and_never_below_nothing(found: list[float]) -> None:
    error = mean_of(found).error  # type: ignore[union-attr]
    assert error is not None
    assert error >= 1.96 * statistics.stdev(found) / math.sqrt(len(found)) * 0.999


def test_speed_ups_are_within_a_repeat() -> None:
    """The node was twice as busy in the second repeat: all repeats say that two ranks are 1.8 times one."""
    busy = [run(n, rate / (1 + r), repeat=r) for n, rate in ((1, 100.0), (2, 180.0)) for r in range(3)]
    found = curve(*busy).points(32)
    assert found[1].speedup is not None
    assert (found[1].speedup.mean, found[1].speedup.error) == (pytest.approx(1.8), pytest.approx(0))
    assert found[1].efficiency is not None
    assert found[1].efficiency.mean == pytest.approx(0.9)
    assert found[1].rate.error is not None
    assert found[1].rate.error > 100


def test_a_repeat_without_its_base_has_no_speed_up() -> None:
    found = curve(run(1, 100), run(2, 180), run(2, 400, repeat=1)).points(32)
    assert found[1].speedup is not None
    assert found[1].speedup.count == 1
    assert found[1].rate.count == 2


def test_where_one_rank_was_not_measured_the_fewest_are_taken_for_perfect() -> None:
    found = curve(run(2, 200), run(4, 300)).points(32)
    assert [point.speedup.mean for point in found if point.speedup] == [2, pytest.approx(3)]


def test_an_epoch_costs_gpu_hours() -> None:
    [point] = curve(run(4, 100), epoch=360_000, gpus_per_task=2).points()
    assert point.hours is not None
    assert point.hours.mean == pytest.approx(4 * 2 * 1.0)
    [on_cpus] = curve(run(4, 100), epoch=360_000, device="cpu", gpus_per_task=0).points()
    assert on_cpus.hours is not None
    assert on_cpus.hours.mean == pytest.approx(4)
    assert curve(run(4, 100)).points()[0].hours is None


# -- the knee ---------------------------------------------------------------------------------------------------------


def test_the_knee_of_the_issue() -> None:
    """Up to 4 each GPU adds one; from there to 16 the twelve add 11 % each."""
    knee = curve_of(lambda n: min(n, 4) + 0.11 * max(0, n - 4), (1, 2, 4, 8, 16)).knee(32)
    assert knee is not None
    assert (knee.ranks, knee.most, knee.bends) == (4, 16, True)
    assert knee.further == pytest.approx(0.11)


@given(RANKS, st.floats(0.01, 1e6))
def test_a_straight_line_has_no_knee_whatever_its_scale(ranks: list[int], scale: float) -> None:
    knee, further, fastest = find_knee({n: ranks[0] + (n - ranks[0]) * 0.9 for n in ranks})
    assert knee == fastest == ranks[-1]
    assert further == pytest.approx(0.9)
    found = curve(*(run(n, scale * n) for n in ranks)).knee(32)
    assert found is not None
    assert not found.bends
    assert found.further == pytest.approx(1)


@given(RANKS, st.data())
def test_a_sharp_bend_is_found_where_it_is(ranks: list[int], data: st.DataObject) -> None:
    bend = data.draw(st.sampled_from(ranks))
    knee, further, fastest = find_knee({n: float(min(n, bend)) for n in ranks})
    assert knee == fastest == bend
    assert further == pytest.approx(1 if bend == ranks[-1] else 0)


@given(RANKS, st.lists(st.floats(0.05, 100), min_size=8, max_size=8), st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_who_wants_more_for_a_rank_never_gets_more_ranks(
    ranks: list[int], rates: list[float], low: float, high: float
) -> None:
    speedups = dict(zip(ranks, rates, strict=False))
    knee = {worth: find_knee(speedups, worth)[0] for worth in (low, high)}
    assert knee[high] <= knee[low]
    assert knee[low] in ranks


@given(RANKS.filter(lambda ranks: len(ranks) > 2), st.floats(0.5, 0.99))
def test_one_bad_point_in_the_middle_makes_no_knee(ranks: list[int], lost: float) -> None:
    speedups = {n: float(n) for n in ranks}
    speedups[ranks[1]] *= lost
    assert find_knee(speedups)[0] == ranks[-1]


def test_more_that_are_slower_take_away() -> None:
    knee = curve_of(lambda n: {1: 1, 2: 1.8, 4: 1.2}[n], (1, 2, 4)).knee(32)
    assert knee is not None
    assert knee.ranks == 2
    assert knee.further == pytest.approx(-0.3)


def test_what_the_ranks_before_the_fastest_add_is_not_hidden_by_the_slower_ones_beyond() -> None:
    knee = curve_of(lambda n: {1: 1, 2: 1.31, 4: 1.0, 10: 0.78}[n], (1, 2, 4, 10)).knee(32)
    assert knee is not None
    assert (knee.ranks, knee.fastest, knee.most) == (1, 2, 10)
    assert knee.further == pytest.approx(0.31)


def test_it_is_said_when_repeats_do_not_agree() -> None:
    runs = [run(n, 100 * n, repeat=r) for n in (1, 2) for r in range(3)]
    runs += [run(4, rate, repeat=r) for r, rate in enumerate((380.0, 390.0, 205.0))]
    knee = curve(*runs).knee(32)
    assert knee is not None
    assert (knee.ranks, knee.agree, knee.repeats) == (4, 2, 3)


def test_one_number_of_ranks_has_no_knee() -> None:
    assert curve(run(1, 100), run(1, 110, repeat=1)).knee(32) is None
    assert curve(run(1, 100)).advice() is None


def test_the_advice_is_on_the_batch_that_is_fastest_at_its_knee() -> None:
    slow = [run(n, 100 * n, batch=32) for n in (1, 2, 4)]
    fast = [run(n, 300 * min(n, 2), batch=96) for n in (1, 2, 4)]
    advice = curve(*slow, *fast).advice()
    assert advice is not None
    assert (advice.batch, advice.ranks) == (96, 2)


# -- as a file --------------------------------------------------------------------------------------------------------


def test_a_curve_comes_back_from_its_file() -> None:
    there = curve(run(1, 100, own=120, quiet=0.9), run(2, 150, repeat=1), epoch=1000, failures=("8 ranks: no node",))
    text = json.dumps(there.to_json(), allow_nan=False)
    assert Curve.from_json(json.loads(text)) == there
    assert len(json.loads(text)["points"]) == 2


@pytest.mark.parametrize("data", [[], {}, {"version": 2}, {"version": 1}, {"version": 1, "runs": [{"ranks": 1}]}])
def test_what_is_no_curve_is_refused(data: object) -> None:
    with pytest.raises(BadCurve):
        Curve.from_json(data)  # type: ignore[arg-type]


def test_which_batch_is_the_fastest_is_no_matter_of_the_last_repeat() -> None:
    slow = [run(n, rate, batch=32, repeat=r) for n in (1, 2) for r, rate in enumerate((100.0, 100.0, 190.0))]
    fast = [run(n, rate, batch=96, repeat=r) for n in (1, 2) for r, rate in enumerate((200.0, 200.0, 170.0))]
    advice = curve(*slow, *fast).advice()
    assert advice is not None
    assert advice.batch == 96
