"""Run one command of an update, keep what it prints, and write how it ended: ``python keeper.py FOLDER``.

It is a process of its own, so that a command that updates a node is never cut off, or run twice, because the one who
watches it was killed. ``FOLDER/command.json`` has ``argv`` and ``limit`` (seconds); it writes ``output`` (the first
10 MB) and ``result.json``, and holds the lock of the open file that it gets as its standard input as long as it runs.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MOST_OUTPUT = 10_000_000
#: Seconds that a command at its limit has to end after TERM.
GRACE = 10.0


def main(folder: Path) -> int:
    """Run the command; return 0 once its end is written."""
    asked = json.loads((folder / "command.json").read_text(encoding="utf-8"))
    began = time.time()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            asked["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return _ended(folder, began, code=-1, problem=f"it cannot be started: {error}")
    in_time = _keep(process, output, time.monotonic() + float(asked["limit"]))
    if not in_time:
        _kill(process, output)
    code = process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # what it left running has its pipe
        os.killpg(process.pid, signal.SIGKILL)
    problem = "" if in_time else f"it did not end within {asked['limit']} s, and was ended"
    return _ended(folder, began, code=code, problem=problem)


def _keep(process: subprocess.Popen[bytes], output: int, until: float) -> bool:
    """Store what it prints until it ends; return False where it has not ended by then."""
    pipe, written, there = process.stdout, os.fstat(output).st_size, True
    assert pipe is not None  # noqa: S101
    while True:
        left = until - time.monotonic()
        if there and select.select([pipe], [], [], max(0.0, min(left, 0.2)))[0]:
            part = os.read(pipe.fileno(), 65536)
            there = bool(part)
            if written < MOST_OUTPUT:
                written += os.write(output, part[: MOST_OUTPUT - written])
        elif process.poll() is not None:
            return True
        if left <= 0:
            return False
        if not there:
            time.sleep(min(left, 0.2))


def _kill(process: subprocess.Popen[bytes], output: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if _keep(process, output, time.monotonic() + GRACE):
            return


def _ended(folder: Path, began: float, *, code: int, problem: str) -> int:
    new = folder / ".result.json.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump({"code": code, "seconds": round(time.time() - began, 1), "problem": problem}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / "result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
