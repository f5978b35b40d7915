"""What a job used is said as it was measured; a suggestion never goes below what was used and a margin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.efficiency import MARGIN, Asked, cpus_needed, efficiency, memory_needed
from carme_hub.domain.activity.minutes import GpuTotal, Total

HOUR = 3600
ASKED = Asked(gpus=4, cpus=16, memory_mib=64 * 1024, minutes=480)


def busy(percent: int, memory: int = 20_000) -> GpuTotal:
    return GpuTotal(used=percent * HOUR, known=HOUR, most=percent, memory=memory)


def used(*gpus: GpuTotal, memory: int = 60_000, cpus: int = 15, seconds: int = HOUR) -> Total:
    return Total(seconds, cpus * 100 * seconds, seconds, cpus * 100, memory, gpus=gpus)


IDLE = busy(0, 10)
MIG = GpuTotal(memory=100)


@pytest.mark.parametrize(
    ("total", "sentence", "suggestion"),
    [
        (
            used(busy(80), IDLE, IDLE, IDLE),
            "1 of 4 GPUs was used, at 80 % on average. Memory: 59 GiB of 64 GiB at most. CPUs: 15.0 of 16 on average.",
            "Ask for 1 GPU.",
        ),
        (
            used(IDLE, IDLE, IDLE, IDLE),
            "None of 4 GPUs were used.",
            "It used no GPU: a profile without GPUs is enough.",
        ),
        (used(*[busy(90)] * 4), "4 of 4 GPUs were used, at 90 % on average.", ""),
        (
            used(*[busy(90)] * 4, memory=3000),
            "Memory: 2.9 GiB of 64 GiB at most.",
            "Ask for 4 GiB of memory: what it used at most, and a quarter more.",
        ),
        (
            used(*[busy(90)] * 4, cpus=2),
            "CPUs: 2.0 of 16 on average.",
            "Ask for 3 CPUs: what it used in its busiest minute, and a quarter more.",
        ),
        (
            used(MIG, MIG, MIG, MIG),
            "How busy its 4 GPUs were is not known. At most 0.1 GiB of one's memory was held.",
            "",
        ),
        (used(busy(90), MIG, IDLE, IDLE), "How busy its 4 GPUs were is not known.", ""),
        (used(busy(90), busy(90)), "How busy its 4 GPUs were is not known.", ""),  # two of them reported nothing
    ],
)
def test_one_sentence_and_one_suggestion(total: Total, sentence: str, suggestion: str) -> None:
    found = efficiency(ASKED, [total], HOUR)
    assert sentence in found.sentence
    assert found.suggestion == suggestion


def test_a_gpu_that_holds_a_model_is_used_although_nothing_ran() -> None:
    assert efficiency(ASKED, [used(*[busy(0, 30_000)] * 4)], HOUR).gpus_used == 4


@pytest.mark.parametrize(("seconds", "measured"), [(300, 300), (HOUR, HOUR // 2)])
def test_without_enough_measured_there_is_no_suggestion(seconds: int, measured: int) -> None:
    total = used(IDLE, IDLE, IDLE, IDLE, seconds=measured)
    assert efficiency(ASKED, [total], seconds).suggestion == ""


def test_without_any_report_nothing_is_said_of_it() -> None:
    found = efficiency(ASKED, [], HOUR)
    assert (found.sentence, found.suggestion) == ("How busy its 4 GPUs were is not known.", "")
    assert efficiency(Asked(0, 2, 1024, 60), [], HOUR).sentence == ""


def test_several_nodes_count_together() -> None:
    found = efficiency(ASKED, [used(busy(80), IDLE), used(busy(40), IDLE, memory=10_000)], HOUR)
    assert (found.gpus_used, found.memory, found.suggestion) == (2, 60_000, "Ask for 2 GPUs.")
    assert found.gpu_utilisation == pytest.approx(60)


def test_virtual_gpus_are_called_so() -> None:
    asked = Asked(gpus=1, cpus=16, memory_mib=64 * 1024, minutes=60, virtual=True)
    assert "1 of 1 virtual GPU was used" in efficiency(asked, [used(busy(80))], HOUR).sentence


@given(
    st.builds(
        Total,
        seconds=st.just(HOUR),
        cpu=st.integers(0, 1600 * HOUR),
        cpu_known=st.just(HOUR),
        cpu_most=st.none() | st.integers(0, 1600),
        memory=st.none() | st.integers(0, 64 * 1024),
        gpus=st.lists(
            st.builds(GpuTotal, most=st.none() | st.integers(0, 100), memory=st.none() | st.integers(0, 40_000)),
            max_size=4,
        ).map(tuple),
    )
)
def test_a_suggestion_leaves_what_was_used_and_a_margin(total: Total) -> None:
    found = efficiency(ASKED, [total], HOUR)
    words = found.suggestion.split()
    if "memory:" in words:
        assert int(words[2]) * 1024 >= (total.memory or 0) * MARGIN
    if found.suggestion.startswith("Ask for") and ("CPU:" in words or "CPUs:" in words):
        assert int(words[2]) >= (total.cpu_most or 0) / 100 * MARGIN
    if words[-1:] in (["GPU."], ["GPUs."]):
        assert int(words[2]) == sum(((gpu.most or 0) > 1) or ((gpu.memory or 0) > 600) for gpu in total.gpus)


@given(st.integers(0, 1 << 24), st.floats(0, 512))
def test_what_is_needed_is_more_than_what_was_used(mib: int, cpus: float) -> None:
    assert (memory_needed(mib) or 0) >= mib * MARGIN
    assert (cpus_needed(cpus) or 0) >= cpus * MARGIN
    assert memory_needed(None) is cpus_needed(None) is None
