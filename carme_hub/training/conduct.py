"""The program that conducts one run: ``python -m carme_hub.training.conduct FOLDER``.

It answers its caller by ending with 0, and goes on in a process below, which is no child of the kernel that asked.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from carme_hub.training.conductor.conductor import Conductor
from carme_hub.training.run.control import Control, path_of
from carme_hub.training.run.run_folder import Run

#: Seconds for those who look on to hear of the end.
FAREWELL = 2.0


def conducting(run: Run) -> Conductor:
    """Return what conducts a run."""
    from carme_hub.training.session.batch_job import broker_here

    if run.asked()["asked"]["elastic"]:
        from carme_hub.training.elastic.elastic_run import ElasticRun

        return ElasticRun(run, broker_here())
    from carme_hub.training.conductor.fixed_size import FixedSizeRun

    return FixedSizeRun(run, broker_here())


def conduct(run: Run, answered: Callable[[], None], make: Callable[[Run], Conductor] = conducting) -> None:
    """Conduct a run to its end.

    Args:
        answered: is called when it can be asked how it stands. make: makes what conducts it.

    Raises:
        RuntimeError: it is conducted already.
    """
    lock = os.open(run.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    _take(lock, run)
    conductor = make(run)
    signal.signal(signal.SIGTERM, lambda *_: conductor.end("stop", "Its session ends."))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    there = Control(path_of(run.id), conductor.answer, conductor.standing.follow, conductor.followed)
    answered()
    try:
        conductor.conduct()
        there.drain(FAREWELL)
    finally:
        there.close()
        os.close(lock)


def _take(lock: int, run: Run) -> None:
    for _ in range(40):  # somebody who asks whether it is conducted has the lock for a moment
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
    raise RuntimeError(f"{run.id} is conducted already.")


def main(words: list[str]) -> int:
    """Conduct the run of a folder in a process below; return when that answers, or has failed to."""
    run = Run(Path(words[0]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a log for each rank, and connections of all of them
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ready, say = os.pipe()
    if os.fork():
        os.close(say)
        return 0 if os.read(ready, 1) else 1

    def answered() -> None:
        os.write(say, b"+")
        os.close(say)

    os.close(ready)
    try:
        conduct(run, answered)
    except BaseException as error:  # noqa: BLE001  the last place where it can be said
        traceback.print_exception(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
