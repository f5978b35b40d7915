"""Runs side by side: what differs in their options, code, packages and results."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from carme_hub.training.run import description
from carme_hub.training.run.description import View
from carme_hub.training.run.run_folder import Run

from . import record
from .marks import read_marks

#: The most lines of a difference in code.
MAX_LINES = 400
#: Options that are no property of a run, or are shown in another way.
_NO_OPTIONS = ("detach", "dry_run", "wait", "name", "own")
#: What comes from the record of a run, which one of an older release does not have.
_OF_RECORD = tuple(("Code", name) for name in ("commit", "branch", "image", "Python", "packages"))
#: Fields of a profile, their names, and how they are formatted.
_PROFILE = (
    ("step_ms", "step, ms", ".1f"),
    ("loading", "data loading", ".0%"),
    ("communication", "communication", ".0%"),
    ("kernels", "kernels in a step", ".0f"),
    ("small", "small kernels", ".0%"),
    ("busy", "GPU busy", ".0%"),
    ("copying", "copies between host and GPU", ".0%"),
    ("gpu_gib", "GPU memory, GiB", ".2f"),
    ("host_gib", "host memory, GiB", ".2f"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One property of several runs.

    Attributes:
        group: "Result", "Profile", "Options", "Parameters", "Code" or "Packages". values: as text, one for each run.
    """

    group: str
    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Return whether two of the runs differ."""
        return len(set(self.values)) > 1


def properties(run: Run) -> dict[tuple[str, str], str]:
    """Return what is known of a run, as text, by group and name."""
    state, request, kept = run.state(), run.request(), record.read_record(run)
    view, text = View(state, time.time()), _text
    found: dict[tuple[str, str], str] = {
        ("Result", "State"): description.state_label(view),
        ("Result", "Reason"): description.reason(view),
        ("Result", "Took"): description.format_duration(view.seconds),
        ("Result", "Nodes"): text(state.get("nodes")),
        ("Result", "GPUs"): text(state.get("gpus")),
        ("Result", "GPU time"): description.format_duration(float(state.get("gpu_seconds") or 0)),
        ("Result", "Speed"): description.speed(view),
        ("Result", "Price"): text(request.get("price")),
        ("Result", "Marks"): str(read_marks(run)),
    }
    found |= {("Result", name): text(value) for name, value in record.last_scalars(run).items()}
    options: Mapping[str, Any] = request.get("given") or request["asked"]
    found |= {
        ("Options", "-n" if name == "ranks" else f"--{name.replace('_', '-')}"): text(value)
        for name, value in options.items()
        if name not in _NO_OPTIONS
        and (value not in (None, False, 0, "", [], ()) or (name, value) == ("gpus_per_task", 0))
    }
    found[("Options", "arguments")] = text(request.get("args"))
    found[("Options", "variables")] = text(request.get("environ", {}).get("forwarded"))
    found |= {("Parameters", name): text(value) for name, value in record.read_params(run).items()}
    profile = record.read_profile(run)
    found |= {
        ("Profile", name): f"{profile[key]:{how}}"
        for key, name, how in _PROFILE
        if isinstance(profile.get(key), (int, float))
    }
    git, image = kept.get("git") or {}, kept.get("image") or {}
    found |= {
        ("Code", request["kind"]): str(request.get("script") or request.get("module") or request.get("command") or ""),
        ("Code", "SHA-256"): record.code_digest(run)[:12],
        ("Code", "commit"): _commit(git),
        ("Code", "branch"): str(git.get("branch", "")),
        ("Code", "image"): " ".join(filter(None, (image.get("name"), _version(image)))),
        ("Code", "Python"): str(kept.get("python", "")),
        ("Code", "packages"): str(kept.get("packages_digest", ""))[:12],
    }
    found |= {("Packages", name): version for name, version in (kept.get("packages") or {}).items()}
    return {key: value for key, value in found.items() if value}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)


def _version(image: Mapping[str, Any]) -> str:
    """Return what tells an image from others of its name: the beginning of its digest, or the end of its path."""
    return str(image.get("digest") or "")[:19] or str(image.get("path", "")).rpartition("/")[2]


def _commit(git: Mapping[str, Any]) -> str:
    """Return the commit, and whether its files were changed."""
    if not git.get("commit"):
        return ""
    changed = git.get("changed", [])
    how = ", unknown whether changed" if changed is None else ", changed" if changed else ""
    return f"{str(git['commit'])[:12]}{how}"


def compare(runs: Sequence[Run]) -> list[Row]:
    """Return all properties that any of the runs has."""
    each = [properties(run) for run in runs]
    if not all(record.read_record(run) for run in runs):  # nothing is known of one, and so nothing differs
        each = [
            {key: value for key, value in found.items() if key not in _OF_RECORD and key[0] != "Packages"}
            for found in each
        ]
    order = ("Result", "Profile", "Options", "Parameters", "Code", "Packages")
    keys = sorted(dict.fromkeys(key for found in each for key in found), key=lambda key: order.index(key[0]))
    return [Row(*key, tuple(found.get(key, "") for found in each)) for key in keys]


def code_difference(old: Run, new: Run) -> list[str]:
    """Return the difference in the code of two runs as lines of a unified diff; [] where there is none."""
    before, after = (record.code_of(run).splitlines() for run in (old, new))
    lines = list(difflib.unified_diff(before, after, old.id, new.id, lineterm=""))
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"({len(lines) - MAX_LINES} more lines)"]


class Comparison:
    """Runs side by side, which a notebook shows as a table and a terminal as text.

    Args:
        runs: two or more, or one. everything: whether what does not differ is shown too.
    """

    def __init__(self, runs: Sequence[Run], *, everything: bool = False) -> None:
        self.runs = tuple(runs)
        self.rows = [row for row in compare(runs) if everything or len(runs) == 1 or row.differs]
        self.difference = code_difference(*runs) if len(runs) == 2 else []

    def __repr__(self) -> str:
        """Return it as text."""
        table = [("", *(run.id for run in self.runs))]
        table += [(f"{row.group}: {row.name}", *row.values) for row in self.rows]
        lines = [[description.plain(cell)[:60] for cell in line] for line in table]
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
        text = ["  ".join(cells).rstrip() for cells in padded]
        if not self.rows:
            text.append("Nothing that is known of them differs.")
        return "\n".join([*text, *([""] if self.difference else []), *self.difference])

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{escape(run.id)}</th>' for run in self.runs)
        body = ""
        for row in self.rows:
            cells = "".join(f"<td>{escape(value)}</td>" for value in row.values)
            body += f'<tr><th scope="row">{escape(f"{row.group}: {row.name}")}</th>{cells}</tr>'
        table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"
        if not self.rows:
            table = "<p>Nothing that is known of them differs.</p>"
        code = f"<details><summary>Code</summary><pre>{escape(chr(10).join(self.difference))}</pre></details>"
        return table + (code if self.difference else "")
