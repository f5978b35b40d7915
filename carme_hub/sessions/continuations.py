"""Batch jobs whose runs another job continues: the session of the one that ended is closed when that is settled.

Opening the next job asks the site's code, the database and Slurm, so it is done beside the reconciler's pass. What
fails for a moment is tried again, and nothing is lost by a restart of the hub: the session is open still, and asks
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from carme_hub.domain.administration.start_stops import StartsStopped
from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.sessions.liveness import Verdict
from carme_hub.domain.sessions.session import CONTINUES, Session

#: Seconds between two tries, and after which a run is given up whose next job cannot be opened.
RETRY_INTERVAL, GIVE_UP = 15.0, 3600.0


def continues(session: Session, verdict: Verdict, mark: EndMark | None) -> bool:
    """Return whether another job is to continue the run of a batch job that has ended."""
    ends = [each for each in (verdict.record, verdict.job) if each is not None and each.phase is Phase.TERMINAL]
    known = [each.exit_code[0] for each in ends if each.exit_code]
    wanted = session.request.requeue and not session.cancel_wanted
    return wanted and CONTINUES in (known or [mark.status if mark is not None else 0])


class Continuations:
    """Opens the next jobs.

    Args:
        open_next: opens the job that continues a session's run, and returns a sentence for its user; an error is one
            of the moment. trigger: makes a pass of the reconciler for a session.
    """

    def __init__(
        self,
        open_next: Callable[[Session], Awaitable[str]],
        trigger: Callable[[str], None],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_next, self._trigger, self._log, self._clock = open_next, trigger, log, clock
        self._tasks: dict[str, asyncio.Task[str]] = {}

    def of(self, session: Session) -> str:
        """Return what came of a session's next job as a sentence; "" while that is open, and a pass follows."""
        task = self._tasks.get(session.id)
        if task is None:
            task = self._tasks[session.id] = asyncio.create_task(self._settle(session))
            task.add_done_callback(lambda _: self._trigger(session.id))
        return task.result() if task.done() and not task.cancelled() else ""

    def forget(self, id: str) -> None:
        """Forget a session that is closed."""
        self._tasks.pop(id, None)

    async def stop(self) -> None:
        """End what is open; a hub that starts again goes on."""
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, session: Session) -> str:
        until = self._clock() + GIVE_UP
        while True:
            try:
                return await self._open_next(session)
            except StartsStopped:
                until = self._clock() + GIVE_UP  # an administrator allows starts again, however long that takes
            except Exception as error:  # noqa: BLE001  the site's code may raise anything
                if self._clock() > until:
                    return f"Its time was over, and it could not be continued: {error}"
                self._log.warning("The batch job %s of %s is not continued yet: %s", session.id, session.user, error)
            await asyncio.sleep(RETRY_INTERVAL)
