"""The record of a run: what is needed to repeat it, in ``record.json`` of its folder.

What the run is (its options, its code, its working folder) is in ``asked.json`` and beside it already, and how it went
in ``state.json``. The record adds the state of the code's Git repository, with the diff in ``code.diff``, the packages
of its Python, and the image. The conductor writes it while the ranks run: a start should not wait for it.

``params.json`` has what the code says of itself by ``here.log_params``, such as seeds and versions of its data.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from carme_hub.training.run.messages import PARAMS, PROFILES, USAGE
from carme_hub.training.run.private_files import write, write_json
from carme_hub.training.run.run_folder import Run, State

from . import source

RECORD, DIFF = "record.json", "code.diff"
#: The copy of a script in the run's folder.
SCRIPT = "script.py"
#: The most bytes that are read of a run's scalars, from the end of the file.
TAIL_BYTES = 1 << 16
_IMAGE = {"name": "", "path": "_PATH", "digest": "_DIGEST"}


def keep_script(script: Path, folder: Path) -> str:
    """Copy a script into a run's folder, where it is not very large, and return its SHA-256; "" = it cannot be read."""
    try:
        text = script.read_bytes()
    except OSError:
        return ""
    if len(text) <= source.MAX_SCRIPT_BYTES:
        write(folder / SCRIPT, text)
    return source.digest(text)


def write_record(run: Run) -> None:
    """Write the record of a run whose request exists."""
    request = run.request()
    beside = Path(request["script"]).parent if request.get("script") else Path(request["cwd"])
    state, diff = source.git_state(beside)
    if diff:
        write(run.folder / DIFF, diff)
    versions = source.packages()
    record: State = {
        "git": state,
        "python": platform.python_version(),
        "packages": versions,
        "packages_digest": source.digest("\n".join(f"{name}=={each}" for name, each in versions.items()).encode()),
        "image": {key: os.environ.get(f"CARME_IMAGE{name}", "") for key, name in _IMAGE.items()},
    }
    write_json(run.folder / RECORD, record)


def read_record(run: Run) -> State:
    """Return the record of a run; {} where it has none."""
    return _read(run.folder / RECORD)


def read_params(run: Run) -> State:
    """Return what the code of a run has said of itself."""
    return _read(run.folder / PARAMS)


def read_profile(run: Run, rank: int = 0) -> State:
    """Return what the profile of a rank says; {} where the run has none."""
    return _read(run.folder / PROFILES / f"rank-{rank}.json")


def profiled_ranks(run: Run) -> list[int]:
    """Return the ranks of a run whose profile has its events."""
    found = (re.fullmatch(r"rank-(\d+)\.json\.gz", path.name) for path in (run.folder / PROFILES).glob("rank-*"))
    return sorted(int(match[1]) for match in found if match)


def profile_events(run: Run, rank: int) -> Path:
    """Return the file with the events of a rank's profile."""
    return run.folder / PROFILES / f"rank-{rank}.json.gz"


def memory_by_module(run: Run) -> list[list[str | float]]:
    """Return name, GiB added and the most GiB of each module that the profile of rank 0 has; [] = there is none."""
    modules = (read_profile(run).get("memory") or {}).get("modules") or ()
    return [[each["name"], each["added_gib"], each["most_gib"]] for each in modules]


def _read(path: Path) -> State:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def code_of(run: Run) -> str:
    """Return the code of a run as text: its cell, or the copy of its script; "" where it has none."""
    for name in ("cell.py", SCRIPT):
        try:
            return (run.folder / name).read_text(errors="replace")
        except OSError:
            continue
    return ""


def code_digest(run: Run) -> str:
    """Return the SHA-256 of what a run executes; "" where that is a module or a command."""
    for name in ("cell.py", "call.pkl"):
        try:
            return source.digest((run.folder / name).read_bytes())
        except OSError:
            continue
    return str(run.request().get("script_digest") or "")


def read_scalars(run: Run, most: int) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the steps of rank 0 and their scalars by name.

    Args:
        most: bytes to read, from the end of the file.
    """
    yield from _read_numbers(run.folder / "scalars.jsonl", most, "step")


def read_usage(run: Run, rank: int, most: int) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield seconds since a rank's start, and what it used then: see carme_hub.training.rank.usage.

    Args:
        most: bytes to read, from the end of the file.
    """
    yield from _read_numbers(run.folder / USAGE / f"rank-{rank}.jsonl", most, "seconds")


def _read_numbers(path: Path, most: int, by: str) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the numbers of each line of a file, with the one that they are by."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines[1 if size > most else 0 :]:
        try:
            values = {name: float(value) for name, value in json.loads(line).items() if name != "at"}
            yield values.pop(by), values
        except (ValueError, KeyError, TypeError, AttributeError):  # the last line may be half
            continue


def last_scalars(run: Run) -> dict[str, float]:
    """Return the last value of each scalar of rank 0, by name, from the end of its file."""
    found: dict[str, float] = {}
    for _, values in read_scalars(run, TAIL_BYTES):
        found |= values
    return found


def copy_code(old: Run, new: Path) -> None:
    """Copy the code and the variables of a run into the folder of another one."""
    for name in ("cell.py", "push.pkl", "call.pkl", SCRIPT):
        if (old.folder / name).is_file():
            shutil.copyfile(old.folder / name, new / name)
            (new / name).chmod(0o600)
