"""What the hub says of runs that were submitted: nobody else knows of a run whose batch job has not begun.

It is kept in the folders of the runs (``Run.set_batch_job``), so that their state needs no hub.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from carme_hub.training.run.run_folder import BATCH_JOB, NoRun, Run
from carme_hub.training.session.companions import Hub, NoHub, Refused
from carme_hub.training.session.user_jobs import hub_of_run, jobs_by_run

#: Seconds between two questions, and after which a run of which the hub knows nothing was certainly not submitted.
INTERVAL, UNKNOWN_SECONDS = 5.0, 120.0
NOT_SUBMITTED = "The hub has no such job: it was not submitted."
FORGOTTEN = "The hub does not know its job any more."
#: Seconds for the hub's answer: a page waits for it.
TIME_LIMIT = 5.0


class Refresher:
    """Asks the hub about batch jobs that have not begun, or that ended without a word; one question for all of them.

    Args:
        interval: seconds in which it asks once at most.
        hub: returns the hub's interface for the user's batch jobs; default: as each run knows it.
    """

    def __init__(self, interval: float = INTERVAL, hub: Callable[[], Hub] | None = None) -> None:
        self._interval = interval
        self._hub = hub
        self._next, self._lock = 0.0, threading.Lock()

    def refresh(self, runs: Iterable[Run]) -> None:
        """Keep what the hub says of those of the runs that need it; a hub that does not answer changes nothing."""
        if time.monotonic() < self._next:
            return
        waiting = [run for run in runs if (run.folder / BATCH_JOB).is_file() and run.waits_for_hub()]
        if not waiting or not self._lock.acquire(blocking=False):  # another thread asks already
            return
        try:
            for hub, runs in self._by_hub(waiting):
                with contextlib.suppress(NoHub, Refused):
                    jobs = jobs_by_run(hub())
                    by_id = {each["id"]: each for each in jobs.values()}
                    for run in runs:
                        with contextlib.suppress(OSError, NoRun):  # it is being deleted
                            _keep(run, jobs.get(run.id) or by_id.get(run.batch_job().get("id")))
        finally:
            self._next = time.monotonic() + self._interval
            self._lock.release()

    def _by_hub(self, runs: Iterable[Run]) -> list[tuple[Callable[[], Hub], list[Run]]]:
        """Return the runs by how their hub is reached: that of this session, or one that was named with them."""
        found: dict[str, tuple[Callable[[], Hub], list[Run]]] = {}
        for run in runs:
            job = run.batch_job()
            hub = self._hub or functools.partial(hub_of_run, job, TIME_LIMIT)
            found.setdefault(json.dumps(job.get("access"), sort_keys=True), (hub, []))[1].append(run)
        return list(found.values())


def _keep(run: Run, found: Mapping[str, Any] | None) -> None:
    before = run.batch_job()
    # An older job of this name is that of a run that was deleted; a newer one continues this run.
    if found is not None and (
        found["id"] == before.get("id") or found["created"] > (before.get("created") or run.state()["began"] - 60)
    ):
        news = ("id", "state", "said", "job", "created", "cancelled", "succeeded")
        run.set_batch_job(before | {name: found.get(name) for name in news})
    elif found is None and time.time() > run.state()["began"] + UNKNOWN_SECONDS:
        run.set_batch_job(before | {"state": "ended", "said": FORGOTTEN if before.get("id") else NOT_SUBMITTED})
