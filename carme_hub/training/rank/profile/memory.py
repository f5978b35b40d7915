"""Which modules hold memory, and when a step holds the most. No input or output."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .analysis import Event
from .modules import PREFIX

#: The most modules of a report, and of a sentence.
MAX_MODULES, NAMED = 200, 3
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """The memory of a module.

    Attributes:
        name: as ``named_modules()`` has it, with its class. added_gib: what one forward pass leaves behind, for the
            backward pass; of a module with parts, theirs too. most_gib: the most that the process held meanwhile.
    """

    name: str
    added_gib: float
    most_gib: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of the profiled steps.

    Attributes:
        most_gib: the most that the process held. at: in which part of a step: "forward pass of layer1 (Sequential)",
            "backward pass", "optimizer". modules: those that add the most come first.
    """

    most_gib: float
    at: str
    modules: tuple[ModuleMemory, ...]


def analyse_memory(events: Sequence[Event], changes: Sequence[tuple[float, int]], held: int) -> Memory | None:
    """Return who holds memory; None where no change of it is known.

    Args:
        events: of the profile; the marks of modules are among them. changes: of the allocated memory: microseconds and
            bytes. held: bytes that are allocated at the beginning.
    """
    if not changes:
        return None
    ordered = sorted(changes)
    times = [at for at, _ in ordered]
    sizes = list(accumulate((size for _, size in ordered), initial=held))  # sizes[n] is held before change n
    found: dict[str, list[tuple[int, int]]] = {}
    forwards = [each for each in events if each.name.startswith(PREFIX) and not each.gpu]
    for each in forwards:
        first, last = bisect_left(times, each.begin), bisect_right(times, each.end)
        name = each.name.removeprefix(PREFIX)
        found.setdefault(name, []).append((sizes[last] - sizes[first], max(sizes[first : last + 1])))
    modules = [
        ModuleMemory(name, max(each[0] for each in passes) / GIB, max(each[1] for each in passes) / GIB)
        for name, passes in found.items()
    ]
    modules.sort(key=lambda each: -each.added_gib)
    most = max(range(len(sizes)), key=sizes.__getitem__)
    when = times[max(most - 1, 0)]
    return Memory(sizes[most] / GIB, _part(events, forwards, when), tuple(modules[:MAX_MODULES]))


def _part(events: Sequence[Event], forwards: Sequence[Event], when: float) -> str:
    """Return the part of a step at a moment."""
    inside = [each for each in forwards if each.begin <= when <= each.end]
    if inside:
        return f"forward pass of {max(inside, key=lambda each: each.begin).name.removeprefix(PREFIX)}"
    names = [each.name for each in events if not each.gpu and each.begin <= when <= each.end]
    if any(name.startswith("Optimizer.step") for name in names):
        return "optimizer"
    if any("Backward" in name for name in names):
        return "backward pass"
    return "code between the passes"


def memory_sentences(memory: Memory, *, on_gpu: bool) -> list[str]:
    """Return what there is to say of the memory of the GPU, or else of the host."""
    where = "of the GPU" if on_gpu else "that torch has taken on the host since the first of these steps"
    found = [f"The most memory {where}, {_size(memory.most_gib)}, is held in the {memory.at}."]
    # A module with parts holds what they hold; the smallest ones say where it is.
    leaves = [each for each in memory.modules if not _has_part(each, memory.modules)]
    if named := [f"{each.name} {_size(each.added_gib)}" for each in leaves[:NAMED] if each.added_gib > 0]:
        found.append(f"Of the modules the most is added by {', '.join(named)}, for the backward pass.")
    return found


def _has_part(module: ModuleMemory, modules: Sequence[ModuleMemory]) -> bool:
    name = module.name.split(" (")[0]
    return "(" not in module.name or any(each.name.startswith(f"{name}.") for each in modules)


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"
