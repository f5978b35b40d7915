"""Amounts as Slurm's accounting prints them: sizes, times of processors, and TRES. What cannot be read is not known."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_UNITS = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20, "P": 1 << 30}


def mib(text: str) -> float | None:
    """Return MiB from ``3501608K``, ``62.5G`` or bytes; None = none."""
    found = _SIZE.fullmatch(text.rstrip("cn"))  # earlier releases append c or n: of each CPU, of each node
    return float(found[1]) * _UNITS[found[2]] if found else None


def seconds_of(text: str) -> float | None:
    """Return seconds from ``[[days-]hours:]minutes:seconds[.thousandths]``; None = none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes = (int(part or 0) for part in found.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(found[4])


def tres_of(text: str) -> dict[str, str]:
    """Return the amounts in ``cpu=4,mem=8G,node=1`` by their names."""
    return dict(part.partition("=")[::2] for part in text.split(",") if part)
