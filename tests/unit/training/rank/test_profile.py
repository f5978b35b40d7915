"""The events of a profile become shares of the time and sentences, and no profile ends a training.

torch is forged here; tests/foreign profiles real steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from carme_hub.training.rank.profile import profiler
from carme_hub.training.rank.profile.analysis import Event, Profile, analyse, sentences
from carme_hub.training.rank.profile.memory import analyse_memory, memory_sentences
from carme_hub.training.rank.progress import Progress
from carme_hub.training.run.messages import PROFILES
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, parse_options

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_shares_count_overlaps_once_and_only_between_the_ends() -> None:
    events = [
        Event(LOADER, 0, 100),
        Event(LOADER, 50, 200),
        Event("gloo:all_reduce", 900, 1500),
        Event("c10d::allreduce_", 890, 950),
        Event("aten::mm", 0, 1000),
    ]
    found = analyse(events, 0, 1000, 2, host_gib=1.5)
    assert found == Profile(2, 0.5, 0.2, 0.11, host_gib=1.5)
    assert sentences(found) == [
        "2 steps of 0.5 ms were profiled.",
        "Data loading: 20% of the time. The training waits for its data: give the DataLoader more workers, or prepare "
        "the data before.",
        "Communication: 11% of the time.",
        "Small kernels: there was no GPU to look at.",
        "Memory at most: host 1.50 GiB.",
    ]


def test_kernels_of_a_gpu_are_counted_without_copies_and_collectives() -> None:
    events = [
        *(Event("gemm", 100 * n, 100 * n + 5, gpu=True) for n in range(6)),
        Event("gemm", 700, 900, gpu=True),
        Event("Memcpy HtoD (Pageable -> Device)", 100, 250, gpu=True),
        Event("Memcpy DtoD", 0, 1000, gpu=True),
        Event("ncclDevKernel_AllReduce", 500, 900, gpu=True),
    ]
    found = analyse(events, 0, 1000, 4, gpu_gib=2.0)
    assert (found.kernels, found.small, found.busy, found.communication) == (2.0, 6 / 7, 0.23, 0.4)
    assert found.copying == 0.15
    said = sentences(found)
    assert said[2] == (
        "Communication: 40% of the time. Larger batches communicate less often, and ranks on one node faster."
    )
    assert said[3] == (
        "Small kernels: 2 kernels in a step, 86% of them shorter than 10 µs; the GPU computed 23% of the time. "
        "Starting them takes longer than they do: try torch.compile, or larger batches."
    )
    assert said[4] == (
        "Copies between host and GPU: 15% of the time. With pin_memory=True and non_blocking=True they run while the "
        "GPU computes."
    )


GIB = 1 << 30


def test_memory_is_told_by_module_and_by_the_part_of_a_step_that_holds_the_most() -> None:
    events = [
        Event("module: Net", 0, 100),
        Event("module: first (Linear)", 10, 40),
        Event("module: second (Linear)", 50, 90),
        Event("module: Loss", 110, 120),
        Event("autograd::engine::evaluate_function: AddmmBackward0", 150, 200),
        Event("Optimizer.step#SGD.step", 300, 310),
        # The next step.
        Event("module: Net", 400, 500),
        Event("module: first (Linear)", 410, 440),
        Event("module: second (Linear)", 450, 490),
    ]
    step = [(20, 2 * GIB), (60, GIB), (70, GIB), (80, -GIB), (160, GIB), (190, -4 * GIB)]
    found = analyse_memory(events, [*step, *((at + 400, size) for at, size in step[:4])], GIB)
    assert found is not None
    assert (found.most_gib, found.at) == (5.0, "forward pass of second (Linear)")  # before the last GPU memory is freed
    assert [(each.name, each.added_gib, each.most_gib) for each in found.modules] == [
        ("Net", 3.0, 5.0),
        ("first (Linear)", 2.0, 3.0),
        ("second (Linear)", 1.0, 5.0),
        ("Loss", 0.0, 4.0),
    ]
    assert memory_sentences(found, on_gpu=True) == [
        "The most memory of the GPU, 5.00 GiB, is held in the forward pass of second (Linear).",
        "Of the modules the most is added by first (Linear) 2.00 GiB, second (Linear) 1.00 GiB, for the backward pass.",
    ]
    assert analyse_memory(events, [], GIB) is None


@pytest.mark.parametrize(
    ("at", "part"), [(155, "backward pass"), (305, "optimizer"), (115, "forward pass of Loss"), (250, "code between")]
)
def test_the_part_of_a_step_is_named(at: int, part: str) -> None:
    events = [
        Event("module: Loss", 110, 120),
        Event("autograd::engine::evaluate_function: AddmmBackward0", 150, 200),
        Event("Optimizer.step#SGD.step", 300, 310),
    ]
    found = analyse_memory(events, [(at, 3 << 20), (400, -(3 << 20))], 0)
    assert found is not None
    assert found.at.startswith(part)
    assert memory_sentences(found, on_gpu=False) == [
        f"The most memory that torch has taken on the host since the first of these steps, 3.0 MiB, is held in the "
        f"{found.at}."
    ]


def test_a_profile_without_events_has_no_shares() -> None:
    assert analyse([], 0, 0, 1).loading == 0.0


class ForgedProfile:
    """torch's profiler, which notes when it was started and stopped."""

    made: list[ForgedProfile] = []

    def __init__(self, activities: Any, acc_events: bool, profile_memory: bool) -> None:
        self.calls: list[str] = []
        self.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def events(self) -> list[Any]:
        taken = SimpleNamespace(start=0, end=4000)
        mark = SimpleNamespace(
            name="Optimizer.step", time_range=taken, device_type="DeviceType.CUDA", is_user_annotation=True
        )
        return [SimpleNamespace(name=LOADER, time_range=taken, device_type="DeviceType.CPU"), mark]

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("trace")


class ForgedHook:
    """One of torch's hooks of all modules."""

    left = 0

    def __init__(self) -> None:
        ForgedHook.left += 1

    def remove(self) -> None:
        ForgedHook.left -= 1


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> Progress:
    found = Progress()
    monkeypatch.setattr(profiler, "PROGRESS", found)
    return found


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    forged, inner = ModuleType("torch"), ModuleType("torch.profiler")
    forged.cuda = SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    forged.profiler = inner  # type: ignore[attr-defined]
    module = SimpleNamespace(
        register_module_forward_pre_hook=lambda hook: ForgedHook(),
        register_module_forward_hook=lambda hook, always_call: ForgedHook(),
    )
    forged.nn = SimpleNamespace(modules=SimpleNamespace(module=module))  # type: ignore[attr-defined]
    forged.compiler = SimpleNamespace(is_compiling=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setattr(ForgedHook, "left", 0)
    inner.profile, inner.ProfilerActivity = ForgedProfile, SimpleNamespace(CPU="cpu")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", forged)
    monkeypatch.setitem(sys.modules, "torch.profiler", inner)
    monkeypatch.setattr(ForgedProfile, "made", [])


def begun(progress: Progress, folder: Path, first: int = 3, last: int = 4) -> profiler.Profiler:
    found = profiler.Profiler(folder, 0, first, last)
    found.install()
    return found


@pytest.mark.usefixtures("torch")
def test_the_asked_steps_are_profiled_and_no_others(
    progress: Progress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(progress, tmp_path)
    progress.step(10, None, 0, {})
    assert ForgedProfile.made == []
    progress.step(11, None, 0, {})  # the second ends, and the third begins
    [made] = ForgedProfile.made
    assert made.calls == ["start"]
    progress.step(12, None, 0, {})
    progress.step(12, None, 0, {})  # a library reports it again
    assert made.calls == ["start"]
    assert ForgedHook.left == 2
    progress.step(13, None, 0, {})
    assert made.calls == ["start", "stop"]
    assert ForgedHook.left == 0
    for step in range(14, 30):
        progress.step(step, None, 0, {})
    assert len(ForgedProfile.made) == 1
    kept = json.loads((tmp_path / PROFILES / "rank-0.json").read_text())
    assert (kept["steps"], kept["step_ms"], kept["loading"], kept["kernels"]) == (2, 2.0, 1.0, None)
    assert "[carme] Data loading: 100% of the time." in capsys.readouterr().out
    for name in ("rank-0.json", "rank-0.json.gz"):
        assert (tmp_path / PROFILES / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("torch")
def test_code_that_ends_early_has_a_profile_of_fewer_steps(progress: Progress, tmp_path: Path) -> None:
    found = begun(progress, tmp_path, 2, 40)
    for step in range(3):
        progress.step(step, None, 0, {})
    found.finish()
    found.finish()
    assert json.loads((tmp_path / PROFILES / "rank-0.json").read_text())["steps"] == 2


@pytest.mark.usefixtures("torch")
def test_code_that_fails_has_no_profile_and_too_few_steps_are_said(
    progress: Progress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = begun(progress, tmp_path)
    for step in range(3):
        progress.step(step, None, 0, {})
    found.drop()
    found.finish()
    assert (ForgedProfile.made[0].calls, ForgedHook.left) == (["start"], 0)
    begun(progress, tmp_path, 40, 41).finish()
    assert capsys.readouterr().out == "[carme] --profile 40:41: this rank reported 0 steps, so none was profiled.\n"


@pytest.mark.usefixtures("torch")
def test_a_profile_that_fails_ends_no_training(
    progress: Progress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / PROFILES).write_text("in the way")
    found = begun(progress, tmp_path)
    for step in range(9):
        progress.step(step, None, 0, {})
    found.finish()
    assert "This rank could not be profiled; the training goes on." in capsys.readouterr().err


def test_without_torch_it_is_said_once(
    progress: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    begun(progress, tmp_path)
    for step in range(9):
        progress.step(step, None, 0, {})
    assert capsys.readouterr().out == "[carme] --profile needs torch, which this code has not imported.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("1:4", "--profile 1:4: write the first and the last step, as in 10:14; the first is 2 or later"),
        ("5:4", "--profile 5:4"),
        ("10:60", "at most 50 are profiled"),
        ("ten", "--profile ten: write two numbers, as in 10:14"),
    ],
)
def test_steps_that_cannot_be_profiled_are_refused(words: str, said: str) -> None:
    with pytest.raises(InvalidOptions, match=said):
        parse_options(["-n", "2", "--profile", words])
    assert parse_options(["-n", "2", "--profile", "10:59"]).profile == (10, 59)
    with pytest.raises(InvalidOptions, match="ranks of an elastic run change"):
        RunOptions(2, elastic=(1, 2), profile=(2, 3))
