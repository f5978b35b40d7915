"""The conductor's program: ``python -m carme_hub.training.conduct FOLDER`` conducts one run.

``new_run.launch`` starts it. The program forks: the parent exits with 0 as soon as the child answers requests, and
the child conducts the run, so it is no child of the kernel that started it.
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
from carme_hub.training.run.control import ControlServer, RequestFolder, socket_path
from carme_hub.training.run.run_folder import Run

#: Seconds for followers to receive the end of the run.
DRAIN_TIMEOUT = 2.0


def make_conductor(run: Run) -> Conductor:
    """Return the conductor of a run."""
    from carme_hub.training.session.batch_job import broker_here

    if run.request()["asked"]["elastic"]:
        from carme_hub.training.elastic.elastic_run import ElasticRun

        return ElasticRun(run, broker_here())
    from carme_hub.training.conductor.fixed_size import FixedSizeRun

    return FixedSizeRun(run, broker_here())


def conduct(
    run: Run,
    on_ready: Callable[[], None],
    make: Callable[[Run], Conductor] = make_conductor,
    ended: str = "The session ended.",
) -> None:
    """Conduct a run to its end.

    Args:
        on_ready: is called when the conductor answers requests. make: makes the conductor.
        ended: what is said of a run whose job ends.

    Raises:
        RuntimeError: the run has a conductor already.
    """
    lock = os.open(run.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    _take_lock(lock, run)
    conductor = make(run)
    signal.signal(signal.SIGTERM, lambda *_: conductor.end("stop", ended))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ControlServer(socket_path(run.id), conductor.answer, conductor.state.follow, conductor.followers_changed)
    requests = RequestFolder(run.folder, conductor.answer)
    on_ready()
    try:
        conductor.conduct()
        server.drain(DRAIN_TIMEOUT)
    finally:
        requests.close()
        server.close()
        os.close(lock)


def _take_lock(lock: int, run: Run) -> None:
    for _ in range(40):  # a process that checks for a conductor holds the lock for a moment
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
    raise RuntimeError(f"{run.id} has a conductor already.")


def allow_many_files() -> None:
    """Let this process have as many files open as it may: a log and a connection for each rank."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(words: list[str]) -> int:
    """Conduct the run of a folder in a child process; return when the child answers or has failed."""
    run = Run(Path(words[0]))
    allow_many_files()
    ready, say = os.pipe()
    if os.fork():
        os.close(say)
        return 0 if os.read(ready, 1) else 1

    def on_ready() -> None:
        os.write(say, b"+")
        os.close(say)

    os.close(ready)
    try:
        conduct(run, on_ready)
    except BaseException as error:  # noqa: BLE001  the last place that can report it
        traceback.print_exception(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
