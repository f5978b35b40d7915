"""Slurm's Prolog and Epilog as its configuration shows them, and whether they call a program of ours.

Each is a path or a pattern (glob(7)) of paths on the compute nodes; of several, newer Slurms show each by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path


def scripts(slurm: Mapping[str, str], name: str) -> list[str]:
    """Return the values of ``Prolog`` or ``Epilog``; [] where Slurm calls nothing.

    Args:
        slurm: ``scontrol show config``.
    """
    return [value for key, value in slurm.items() if key.partition("[")[0] == name and value not in ("", "(null)")]


def files(values: list[str]) -> list[Path]:
    """Return the files of this machine that values name; compute nodes may have others."""
    return [Path(path) for value in values if value.startswith("/") for path in sorted(glob(value)) or [value]]  # noqa: PTH207


def calls(values: list[str], *programs: str) -> bool | None:
    """Return whether one of the programs is called, by name or in a script; None where that cannot be seen here."""
    known = True
    for file in files(values):
        ours = "carme-" in file.name  # a pattern without files here is one for the nodes
        if any((ours and fnmatchcase(each, file.name)) or each in (text_of(file) or "") for each in programs):
            return True
        known = known and text_of(file) is not None
    return False if known else None


def text_of(file: Path) -> str | None:
    """Return the text of a file, None where it cannot be read here."""
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return None


def folders(values: list[str], program: str) -> Iterator[Path]:
    """Yield the folders of scripts that call a program by its name."""
    for file in files(values):
        if program in (text_of(file) or ""):
            yield file.parent
