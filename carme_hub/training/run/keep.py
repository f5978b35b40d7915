"""Deletes runs, so that it can be undone, and keeps the number of old runs within limits that the user sets.

A deleted run is moved to ``~/.carme/runs/.deleted`` and removed a week later, when the next run is created.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .environment import FILE
from .private_files import write_json
from .run_folder import ENDED, NoRun, Run, all_runs, root

#: Seconds for which a deleted run can be restored.
RESTORE_SECONDS = 7 * 86400
#: Seconds for which the conductor of a run that has ended may still write its record.
CONDUCTOR_SECONDS = 5.0
_DAY, _GIB = 86400, 1 << 30


class CannotDelete(RuntimeError):
    """A run cannot be deleted or restored; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many runs are kept; 0 = no limit.

    Attributes:
        days: after its end a run is deleted. gib: of all runs; the oldest are deleted first.
    """

    days: int = 0
    gib: int = 0


def limits(environ: Mapping[str, str] = os.environ) -> Limits:
    """Return the user's limits, or else those of the site (``CARME_KEEP_RUNS``: days, or ``days:GiB``)."""
    try:
        document = json.loads(_file().read_text())
        return Limits(int(document["days"]), int(document["gib"]))
    except (OSError, ValueError, KeyError, TypeError):
        days, _, gib = environ.get("CARME_KEEP_RUNS", "").partition(":")
        return Limits(int(days) if days.isdigit() else 0, int(gib) if gib.isdigit() else 0)


def set_limits(new: Limits) -> None:
    """Store the user's limits; what exceeds them is deleted when the next run starts.

    Raises:
        CannotDelete: a limit is negative.
    """
    if new.days < 0 or new.gib < 0:
        raise CannotDelete("A limit is a number of days or GiB; 0 = no limit.")
    root().mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(_file(), asdict(new))


def delete(run: Run) -> str:
    """Delete a run that has ended, and return the name by which ``restore`` undoes that for a week.

    Raises:
        CannotDelete: it has not ended. NoRun: there is none.
    """
    state = run.state()
    if state["state"] not in ENDED:
        raise CannotDelete(f"{run.id} has not ended. Stop it first: carme-hub runs stop {run.id}")
    if state["state"] == "lost" and state["companions"]:
        raise CannotDelete(f"{run.id} still has companions. Stop it, so that they are given back.")
    folder = _deleted()
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / run.id
    for number in range(2, 10_000):  # a name may be used again
        if not target.exists():
            break
        target = folder / f"{run.id}~{number}"
    (run.folder / FILE).unlink(missing_ok=True)  # it may have secrets, where its conductor was killed
    os.utime(run.folder)  # the time of its deletion
    run.folder.rename(target)
    return target.name


def remove(run: Run, patience: float = CONDUCTOR_SECONDS) -> None:
    """Remove the folder of a run that has ended and that nobody needs, once its conductor writes nothing more there."""
    until = time.monotonic() + patience
    while run.lock_held() and time.monotonic() < until:
        time.sleep(0.02)
    shutil.rmtree(run.folder, ignore_errors=True)


def deleted() -> list[str]:
    """Return the names of deleted runs that can be restored, the newest first."""
    return [path.name for path in sorted(_folders(_deleted()), key=lambda path: path.stat().st_mtime, reverse=True)]


def restore(name: str) -> Run:
    """Restore a deleted run.

    Raises:
        CannotDelete: there is none, or another run has its name now.
    """
    source = _deleted() / name
    if "/" in name or name.startswith(".") or not source.is_dir():
        raise CannotDelete(f"There is no deleted run {name[:80]!r}. `carme-hub runs deleted` lists them.")
    target = root() / name.partition("~")[0]
    if target.exists():
        raise CannotDelete(f"There is another run {target.name} now. Delete that first, or leave this one.")
    source.rename(target)
    return Run(target)


def apply(now: Limits | None = None, clock: Callable[[], float] = time.time) -> list[str]:
    """Delete runs beyond the limits, and remove those that were deleted long ago; return the names of the former."""
    for path in _folders(_deleted()):
        with contextlib.suppress(OSError):  # another process does the same
            if clock() - path.stat().st_mtime > RESTORE_SECONDS:
                shutil.rmtree(path)
    now = now or limits()
    gone = []
    for run in _beyond(now, clock()) if now.days or now.gib else ():
        with contextlib.suppress(OSError, CannotDelete, NoRun):
            gone.append(delete(run))
    return gone


def _beyond(now: Limits, at: float) -> Iterator[Run]:
    """Yield ended runs that are too old, and the oldest ones as long as all together are too large."""
    used = 0
    for run in all_runs():  # the newest first
        try:
            state = run.state()
        except (OSError, ValueError, NoRun):  # it is being created or deleted
            continue
        used += size(run.folder) if now.gib else 0
        if state["state"] not in ENDED or (state["state"] == "lost" and state["companions"]):
            continue
        ended = float(state.get("ended") or state["began"])
        if (now.days and at - ended > now.days * _DAY) or (now.gib and used > now.gib * _GIB):
            yield run


def size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    found = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(Path(top) / name).st_size
    return found


def _folders(top: Path) -> list[Path]:
    try:
        return [path for path in top.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def _deleted() -> Path:
    return root() / ".deleted"


def _file() -> Path:
    return root() / ".keep.json"
