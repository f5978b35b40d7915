# ruff: noqa: SIM115, UP035, PTH123
"""The journal of a session's copies: files that are done, so that a later pass skips those that have not changed since.

carme-stage loads this file (``carme-stage-journal`` on a node). It runs as the user.
"""

import contextlib
import json
import os
import stat
import threading

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, List  # noqa: F401  in comments for Python 3.6


class Journal:
    """The files that are done, on disk: one JSON line for each, written after its rename."""

    def __init__(self, path: str) -> None:
        self.path, self.lock, self.done = path, threading.Lock(), {}  # type: str, Any, Dict[str, List[Any]]
        try:
            with open(path, encoding="utf-8") as file:
                for line in file:
                    if line.endswith("\n"):  # the last one may have been cut off
                        target, *rest = json.loads(line)
                        self.done[target] = rest
        except (OSError, ValueError):
            pass  # files that it does not have are copied again, and end the same
        self.file = open(path, "a", encoding="utf-8", buffering=1)
        if self.file.tell():
            with contextlib.suppress(OSError):
                self.file.write("\n")  # a line that was cut off ends here

    def has(self, target: str, found: "os.stat_result") -> bool:
        """Return whether this file is done: it is as it was, and so is what was written."""
        entry = self.done.get(target)
        if entry is None or entry[:3] != [found.st_size, found.st_mtime_ns, found.st_ctime_ns]:
            return False
        try:
            there = os.lstat(target)
        except OSError:
            return False
        return stat.S_ISREG(there.st_mode) and [there.st_size, there.st_mtime_ns] == entry[4:6]

    def add(self, target: str, found: "os.stat_result", digest: str) -> None:
        """Note that a file is done."""
        there = os.lstat(target)
        entry = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, digest, there.st_size, there.st_mtime_ns]
        with self.lock:
            self.done[target] = entry
            with contextlib.suppress(OSError):  # the disk is full: a later pass copies it again; what is there counts
                self.file.write(json.dumps([target, *entry]) + "\n")
                self.file.flush()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self.file.close()
