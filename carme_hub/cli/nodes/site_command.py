"""Commands of the site in an update: started by ``keeper.py``; whoever goes on with it looks after them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .progress_file import result_of

KEEPER = Path(__file__).with_name("keeper.py")
_LOCK = "lock"
#: Variables of this command that are no business of the site's: the hub's token among them.
_PRIVATE = ("JUPYTERHUB_", "CARME_")
#: Keepers that this process started; those that have ended are reaped.
_keepers: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. ``problem``: why it did not succeed, as words that continue "its command …"; "" = it did."""

    seconds: float
    problem: str


def was_started(folder: Path) -> bool:
    """Return whether ``start`` came so far that the command may run, or have run."""
    return (folder / _LOCK).exists()


def start(folder: Path, argv: Sequence[str], limit: int, more: Mapping[str, str]) -> None:
    """Start a command that goes on when this process ends.

    Args:
        folder: for its output; what an attempt that did not come to a start has left there is replaced.
        more: variables of its environment, besides this process's own without those of the hub.

    Raises:
        OSError: it was not started.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"argv": list(argv), "limit": limit}
    with os.fdopen(os.open(folder / "command.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
    # The lock belongs to the open file, which the keeper inherits: it is free when the keeper has ended, however.
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        keeper = subprocess.Popen(
            [sys.executable, "-I", str(KEEPER), str(folder)],
            stdin=lock,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={**environ, **more},
        )
    finally:
        os.close(lock)
    _keepers.append(keeper)


def ended(folder: Path) -> Ended | None:
    """Return how a command that was started has ended, None while it runs."""
    _keepers[:] = [each for each in _keepers if each.poll() is None]
    running = _is_running(folder)  # before the result: a keeper writes that and then ends
    found = result_of(folder)
    if found is None:
        if running:
            return None
        return Ended(0.0, "was cut off, and it is not known how far it came; did this machine restart?")
    code, seconds = int(found.get("code", -1)), float(found.get("seconds", 0.0))
    if found.get("problem"):
        return Ended(seconds, f"failed: {found['problem']}")
    if code == 0:
        return Ended(seconds, "")
    how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    last = last_line(folder)
    return Ended(seconds, f"{how}{f': {last}' if last else ''}")


def last_line(folder: Path, most: int = 120) -> str:
    """Return the last line that a command printed, for people; the file has all of it."""
    try:
        with (folder / "output").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = ["".join(each if each.isprintable() else " " for each in line).strip() for line in text.splitlines()]
    return next((line[:most] for line in reversed(lines) if line), "")


def _is_running(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
