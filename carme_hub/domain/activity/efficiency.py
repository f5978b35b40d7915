"""What a job used of what it asked for, and one suggestion for the next time. Pure.

A suggestion never goes below what was used and a margin, and is made only where enough was measured.

    found = efficiency(Asked(gpus=4, …), [total], seconds=7200)
    found.sentence     # "1 of 4 GPUs was used, at 80 % on average. …"
    found.suggestion   # "Ask for 1 GPU."
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .minutes import GpuTotal, Total

#: A GPU counts as used if it was busy for more than so many percent in any minute, or held more than so many MiB.
BUSY_PERCENT, HELD_MIB = 1, 600
#: What a suggestion leaves above what was used.
MARGIN = 1.25
#: The share of a job's time that must have been measured, and the seconds that it must have run.
MEASURED, LONG_ENOUGH = 0.8, 600
#: A suggestion is made where it saves at least this share.
WORTH_IT = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job asked for: GPUs in all; CPUs and MiB on each node; minutes. ``virtual``: its GPUs are virtual."""

    gpus: int
    cpus: int
    memory_mib: int
    minutes: int
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """What a job used; None = unknown.

    Attributes:
        gpus_used: of those that it had. gpu_utilisation: percent on average of the GPUs that were used.
        gpu_memory: MiB, the most of one GPU. cpus: CPUs on average; cpus_most: in the busiest minute; memory: MiB, the
            most; each of one node. measured: share of its time.
    """

    gpus_used: int | None = None
    gpu_utilisation: float | None = None
    gpu_memory: int | None = None
    cpus: float | None = None
    cpus_most: float | None = None
    memory: int | None = None
    measured: float = 0.0


@dataclass(frozen=True, slots=True)
class Efficiency(Used):
    """What a job used.

    Attributes:
        sentence: what was used. suggestion: what to ask for next time; "" = nothing better is known.
    """

    sentence: str = ""
    suggestion: str = ""


def efficiency(asked: Asked, totals: Sequence[Total], seconds: float) -> Efficiency:
    """Return what a job used, as ``used`` takes it, in words."""
    found = used(asked, totals, seconds)
    enough = found.measured >= MEASURED and seconds >= LONG_ENOUGH
    suggested = _suggestion(found, asked) if enough else ""
    return Efficiency(**asdict(found), sentence=sentence(found, asked), suggestion=suggested)


def used(asked: Asked, totals: Sequence[Total], seconds: float) -> Used:
    """Return what a job used.

    Args:
        totals: one for each node that reported. seconds: for which it ran.
    """
    gpus = [gpu for total in totals for gpu in total.gpus]
    measured = max((total.seconds for total in totals), default=0) / seconds if seconds > 0 else 0.0
    number = _used(gpus, asked.gpus)
    busy = [gpu for gpu in gpus if _is_used(gpu)] if number else []
    known = sum(gpu.known for gpu in busy)
    cpu_known = sum(total.cpu_known for total in totals)
    most = [total.cpu_most for total in totals if total.cpu_most is not None]
    return Used(
        gpus_used=number,
        gpu_utilisation=sum(gpu.used for gpu in busy) / known if known else (0.0 if number == 0 and gpus else None),
        gpu_memory=max((gpu.memory for gpu in gpus if gpu.memory is not None), default=None),
        cpus=sum(total.cpu for total in totals) / cpu_known / 100 if cpu_known else None,
        cpus_most=max(most) / 100 if most else None,
        memory=max((total.memory for total in totals if total.memory is not None), default=None),
        measured=min(1.0, measured),
    )


def _is_used(gpu: GpuTotal) -> bool | None:
    """Return whether a GPU was used; None = unknown."""
    if (gpu.most is not None and gpu.most > BUSY_PERCENT) or (gpu.memory is not None and gpu.memory > HELD_MIB):
        return True
    # What is not known to be idle may have been used: a MIG device has no utilisation, and may hold little memory.
    return False if gpu.most is not None else None


def _used(gpus: Sequence[GpuTotal], asked: int) -> int | None:
    if len(gpus) < asked or not asked:
        return None
    found = [_is_used(gpu) for gpu in gpus]
    return None if None in found else sum(bool(each) for each in found)


def sentence(found: Used, asked: Asked) -> str:
    """Return what was used of what was asked for; "" where nothing is known and no GPU was asked for."""
    kind = gpu_word(asked)
    said = []
    if asked.gpus and found.gpus_used is None:
        held = f" At most {gib(found.gpu_memory)} of one's memory was held." if found.gpu_memory is not None else ""
        said.append(f"How busy its {count(asked.gpus, kind)} {_were(asked.gpus)} is not known.{held}")
    elif asked.gpus:
        share = f", at {found.gpu_utilisation:.0f} % on average" if found.gpus_used and found.gpu_utilisation else ""
        number = "None" if not found.gpus_used else str(found.gpus_used)
        said.append(f"{number} of {count(asked.gpus, kind)} {_were(found.gpus_used or 0)} used{share}.")
    if found.memory is not None:
        said.append(f"Memory: {gib(found.memory)} of {gib(asked.memory_mib)} at most.")
    if found.cpus is not None:
        said.append(f"CPUs: {found.cpus:.1f} of {asked.cpus} on average.")
    return " ".join(said)


def _suggestion(found: Used, asked: Asked) -> str:
    """Return the one that frees most: GPUs before memory before CPUs."""
    if asked.gpus and found.gpus_used is not None and found.gpus_used < asked.gpus:
        return fewer_gpus(found.gpus_used, asked)
    memory = memory_needed(found.memory)
    if memory is not None and memory <= asked.memory_mib * (1 - WORTH_IT):
        return less_memory(memory)
    cpus = cpus_needed(found.cpus_most)
    if cpus is not None and cpus <= asked.cpus * (1 - WORTH_IT):
        return fewer_cpus(cpus)
    return ""


def fewer_gpus(number: int, asked: Asked) -> str:
    """Return the suggestion to ask for so many GPUs, 0 = none."""
    kind = gpu_word(asked)
    return f"Ask for {count(number, kind)}." if number else f"It used no {kind}: a profile without GPUs is enough."


def less_memory(mib: int) -> str:
    """Return the suggestion to ask for so much memory."""
    return f"Ask for {gib(mib)} of memory: what it used at most, and a quarter more."


def fewer_cpus(number: int) -> str:
    """Return the suggestion to ask for so many CPUs."""
    return f"Ask for {count(number, 'CPU')}: what it used in its busiest minute, and a quarter more."


def gpu_word(asked: Asked) -> str:
    """Return what one of its GPUs is called."""
    return "virtual GPU" if asked.virtual else "GPU"


def memory_needed(used_mib: int | None) -> int | None:
    """Return the MiB to ask for, whole GiB: what was used and a margin."""
    return None if used_mib is None else math.ceil(used_mib * MARGIN / 1024) * 1024 or 1024


def cpus_needed(most: float | None) -> int | None:
    """Return the CPUs to ask for: those of the busiest minute and a margin."""
    return None if most is None else max(1, math.ceil(most * MARGIN))


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def gib(mib: int) -> str:
    """Return MiB as GiB, with one digit after the point where it is small, and MiB where that would be 0."""
    value = mib / 1024
    if 0 < mib < 100:
        return f"{mib:.0f} MiB"
    return f"{value:.1f} GiB" if value < 10 and mib % 1024 else f"{value:.0f} GiB"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
