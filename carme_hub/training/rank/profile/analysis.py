"""What takes the time of a step: data loading, communication, small kernels. No input or output.

The numbers are the shares of the time between the first and the last profiled step that events of a kind cover, with
overlaps counted once, so the shares can be more than 100 % together: communication and kernels run beside each other.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: torch's DataLoader marks the wait for a batch (torch/utils/data/dataloader.py, _BaseDataLoaderIter.__next__).
_LOADING = re.compile(r"enumerate\(DataLoader\)")
#: Names of collectives: of torch's backends on the CPU and as kernels, and of Horovod.
_COMMUNICATION = re.compile(r"\b(nccl|gloo|mpi|ucc):|c10d::|nccl(Dev)?Kernel|horovod", re.IGNORECASE)
_COPY = re.compile(r"^(Memcpy|Memset)")
_HOST_COPY = re.compile(r"^Memcpy (HtoD|DtoH)")
#: Microseconds of a kernel that is small: starting it takes about as long.
SMALL_KERNEL = 10.0
#: Shares from which a sentence has advice.
MUCH_LOADING, MUCH_COMMUNICATION, MUCH_COPYING, MANY_SMALL, LITTLE_BUSY = 0.1, 0.2, 0.1, 0.5, 0.7


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a profile: its name, its begin and end in microseconds, and whether it ran on a GPU."""

    name: str
    begin: float
    end: float
    gpu: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """What the profiled steps of one rank have taken.

    Attributes:
        steps: number of them. step_ms: of one, on average. loading, communication: shares of the time, from 0 to 1.
        kernels: on the GPU in a step, on average; None = there was no GPU. small: the share of them that is shorter
            than ``SMALL_KERNEL``. busy, copying: the shares of the time in which the GPU computed, and copied from or
            to the host.
        gpu_gib, host_gib: the most memory; None = unknown.
    """

    steps: int
    step_ms: float
    loading: float
    communication: float
    kernels: float | None = None
    small: float | None = None
    busy: float | None = None
    copying: float | None = None
    gpu_gib: float | None = None
    host_gib: float | None = None


def analyse(
    events: Iterable[Event],
    begin: float,
    end: float,
    steps: int,
    *,
    gpu_gib: float | None = None,
    host_gib: float | None = None,
) -> Profile:
    """Return the shares of the time between two moments, in microseconds, with so many steps."""
    whole, every = max(end - begin, 1e-9), list(events)
    kernels = [each for each in every if each.gpu and not _COPY.match(each.name)]
    copies = [each for each in every if each.gpu and _HOST_COPY.match(each.name)]
    own = [each for each in kernels if not _COMMUNICATION.search(each.name)]
    lengths = [each.end - each.begin for each in own]
    return Profile(
        steps=steps,
        step_ms=whole / steps / 1000,
        loading=_covered([each for each in every if _LOADING.search(each.name)], begin, end) / whole,
        communication=_covered([each for each in every if _COMMUNICATION.search(each.name)], begin, end) / whole,
        kernels=len(kernels) / steps if kernels else None,
        small=statistics.fmean(length < SMALL_KERNEL for length in lengths) if lengths else None,
        busy=_covered(own, begin, end) / whole if kernels else None,
        copying=_covered(copies, begin, end) / whole if kernels else None,
        gpu_gib=gpu_gib,
        host_gib=host_gib,
    )


def _covered(events: Sequence[Event], begin: float, end: float) -> float:
    """Return how much of the time between two moments the events cover."""
    covered, until = 0.0, begin
    for each in sorted(events, key=lambda event: event.begin):
        first, last = max(each.begin, until), min(each.end, end)
        if last > first:
            covered, until = covered + last - first, last
    return covered


def sentences(profile: Profile) -> list[str]:
    """Return what a profile says, with advice where there is some."""
    found = [f"{profile.steps} steps of {profile.step_ms:.1f} ms were profiled."]
    text = f"Data loading: {profile.loading:.0%} of the time."
    if profile.loading >= MUCH_LOADING:
        text += " The training waits for its data: give the DataLoader more workers, or prepare the data before."
    found.append(text)
    text = f"Communication: {profile.communication:.0%} of the time."
    if profile.communication >= MUCH_COMMUNICATION:
        text += " Larger batches communicate less often, and ranks on one node faster."
    found.append(text)
    if profile.kernels is None or profile.busy is None:
        found.append("Small kernels: there was no GPU to look at.")
    else:
        text = f"Small kernels: {profile.kernels:.0f} kernels in a step"
        text += f", {profile.small:.0%} of them shorter than {SMALL_KERNEL:.0f} µs" if profile.small is not None else ""
        text += f"; the GPU computed {profile.busy:.0%} of the time."
        if (profile.small or 0) >= MANY_SMALL and profile.busy < LITTLE_BUSY:
            text += " Starting them takes longer than they do: try torch.compile, or larger batches."
        found.append(text)
        if profile.copying is not None and profile.copying >= MUCH_COPYING:
            text = f"Copies between host and GPU: {profile.copying:.0%} of the time."
            found.append(f"{text} With pin_memory=True and non_blocking=True they run while the GPU computes.")
    known = (("GPU", profile.gpu_gib), ("host", profile.host_gib))
    if memory := ", ".join(f"{what} {gib:.2f} GiB" for what, gib in known if gib is not None):
        found.append(f"Memory at most: {memory}.")
    return found
