# ruff: noqa: UP006, UP035
"""``python -m carme_hub.files.measure FOLDER``: how much a folder has, and its largest folders, as JSON on stdout.

The page *Files* starts it with the lowest priority, and the session once a day for the home. For a shared folder a job
on a compute node runs its text (``carme_hub.node.folder_job``), which therefore needs Python 3.6 and its library alone.
It counts what is on the disk (blocks, hard links once), stays on one file system, follows no links, and stops after
``MOST_SECONDS``. Its memory is the job's: what it remembers is bounded, and a tree beyond that is measured in part,
which it says.
"""

import json
import os
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Set, Tuple

#: Folders that are named, and how far below the measured one.
MOST_FOLDERS, DEPTH = 20, 2
#: The most hard links, folders still to be read, and folders with sums of their own: some 50 MB in all.
MOST_LINKS, MOST_WAITING, MOST_SUMS = 200_000, 100_000, 50_000
#: Seconds after which it stops with what it has; entries between two looks at the clock.
MOST_SECONDS, LOOK_EVERY = 900.0, 1000
BLOCK = 512  # of st_blocks, whatever the file system's own are (stat(2))


def measured(root: str, clock: "Callable[[], float]" = time.monotonic) -> "Dict[str, Any]":
    """Return what a folder has and its largest folders, the largest first.

    Returns:
        ``root``, ``bytes`` (on the disk), ``files``, ``complete`` (nothing was left out), and ``folders``: of each
        ``path`` (relative), ``bytes`` and ``files``, with all that is below.

    Raises:
        OSError: the folder itself cannot be read.
    """
    end, complete, entries = clock() + MOST_SECONDS, True, 0
    links: Set[Tuple[int, int]] = set()
    device = Path(root).stat().st_dev
    with os.scandir(root):
        pass
    sums: Dict[Tuple[str, ...], List[int]] = {(): [0, 0]}
    waiting: List[Tuple[str, Tuple[str, ...]]] = [(root, ())]
    while waiting:
        folder, name = waiting.pop()
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    entries += 1
                    status = entry.stat(follow_symlinks=False)
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if is_folder and status.st_dev != device:
                        continue
                    if not is_folder and status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in links:
                            continue
                        if len(links) < MOST_LINKS:
                            links.add((status.st_dev, status.st_ino))
                    own = (*name, entry.name) if is_folder and len(name) < DEPTH and len(sums) < MOST_SUMS else name
                    for depth in range(len(own) + 1):
                        total = sums.setdefault(own[:depth], [0, 0])
                        total[0] += status.st_blocks * BLOCK
                        total[1] += not is_folder
                    if is_folder and len(waiting) < MOST_WAITING:
                        waiting.append((entry.path, own))
                    elif is_folder:
                        complete = False
                    if entries % LOOK_EVERY == 0 and clock() > end:
                        complete, waiting = False, []
                        break
        except OSError:  # a folder of somebody else, or one that is gone
            complete = False
    every = sorted(((size, files, "/".join(name)) for name, (size, files) in sums.items() if name), reverse=True)
    folders = [{"path": shown(path), "bytes": size, "files": files} for size, files, path in every[:MOST_FOLDERS]]
    return {"root": shown(root), "bytes": sums[()][0], "files": sums[()][1], "complete": complete, "folders": folders}


def shown(path: str) -> str:
    """Return a path for people and JSON, at most 1000 characters of it."""
    return os.fsencode(path).decode("utf-8", "replace")[:1000]


def main(argv: "List[str]") -> int:
    """Measure, and print the result."""
    os.nice(19)
    try:
        print(json.dumps(measured(str(Path(argv[1]).resolve()))))  # noqa: T201  the result
    except OSError as error:
        print(f"{argv[1]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
