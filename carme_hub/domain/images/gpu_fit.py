"""Whether an image's CUDA fits GPUs: against the driver of their nodes, and against what the GPUs are. Pure.

Minimum drivers are those of "CUDA Compatibility" (minor version compatibility, Linux); the first CUDA for a GPU is that
of its compute capability, both by NVIDIA's release notes. What is not known is unknown, and never "fits".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .contents import numbers

#: The oldest driver for each CUDA, the newest CUDA first. 11 and later: for the whole major version.
DRIVERS: tuple[tuple[tuple[int, ...], str], ...] = (
    ((13,), "580.65.06"),
    ((12,), "525.60.13"),
    ((11,), "450.80.02"),
    ((10, 2), "440.33"),
    ((10, 1), "418.39"),
    ((10, 0), "410.48"),
    ((9, 2), "396.26"),
    ((9, 0), "384.81"),
)
#: The first and the last CUDA (major version; 0 = still supported) for GPUs whose type contains a word.
GPUS: Mapping[str, tuple[tuple[int, ...], int]] = {
    "b200": ((12, 8), 0),
    "b100": ((12, 8), 0),
    "gb200": ((12, 8), 0),
    "h100": ((11, 8), 0),
    "h200": ((11, 8), 0),
    "gh200": ((11, 8), 0),
    "l40s": ((11, 8), 0),
    "l40": ((11, 8), 0),
    "l4": ((11, 8), 0),
    "a100": ((11, 0), 0),
    "a30": ((11, 0), 0),
    "a40": ((11, 1), 0),
    "a10": ((11, 1), 0),
    "t4": ((10, 0), 0),
    "v100": ((9, 0), 12),
    "p100": ((8, 0), 12),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """``fits``: None = unknown. ``why``: a sentence, "" where there is nothing to say."""

    fits: bool | None
    why: str = ""


def needed_driver(cuda: str) -> str:
    """Return the oldest driver for a version of CUDA; "" where it is not known."""
    have = numbers(cuda)
    for least, driver in DRIVERS:
        if have[: len(least)] == least:
            return driver
    return ""


def fit_of(cuda: str, types: Collection[str], drivers: Mapping[str, str]) -> Fit:
    """Return whether an image fits a profile.

    Args:
        cuda: of the image, "" = not found. types: the profile's GPU types, () = it has none.
        drivers: the oldest driver among a type's nodes, by type; a type that is missing is unknown.
    """
    if not types:
        return Fit(True)
    if not cuda:
        return Fit(None, "No CUDA was found in it, so whether it can use GPUs is not known.")
    every = [_one(cuda, type, drivers.get(type, "")) for type in types]
    wrong = [each for each in every if each.fits is False]
    if len(wrong) == len(every):
        return wrong[0]
    if wrong:
        return Fit(None, " ".join(each.why for each in wrong))
    return next((each for each in every if each.fits is None), Fit(True))


def _one(cuda: str, type: str, driver: str) -> Fit:
    have = numbers(cuda)
    first, last = next((of for word, of in GPUS.items() if _names(type, word)), ((), 0))
    if first and have[: len(first)] < first:
        return Fit(False, f"CUDA {cuda} is too old for {type}, which needs {'.'.join(map(str, first))} or later.")
    if last and have[0] > last:
        return Fit(False, f"CUDA {cuda} does not support {type} any more; the last that does is {last}.")
    needed = needed_driver(cuda)
    if not needed:
        return Fit(None, f"Which driver CUDA {cuda} needs is not known.")
    if not driver:
        return Fit(None, f"CUDA {cuda} needs driver {needed} or later; that of {type} is not known.")
    if numbers(driver) < numbers(needed):
        return Fit(False, f"CUDA {cuda} needs driver {needed} or later; {type} has {driver}.")
    return Fit(True)


def _names(type: str, word: str) -> bool:
    """Return whether a GPU type of Slurm, such as nvidia_a100-sxm4-40gb, names a GPU."""
    parts = type.lower().replace("-", "_").replace(".", "_").split("_")
    return word in parts
