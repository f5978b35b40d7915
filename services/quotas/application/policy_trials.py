"""Policies that are being tried: each in a task of its own, so that a page can say that it is at work.

Nothing of it is written. The last ones are kept in memory for whoever opens their address; one is at work at a time,
since each reads weeks of Slurm's accounting.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from carme_hub.accounting.policy_trial import Trial
from carme_hub.errors import CarmeError, SlurmError

#: How many trials are kept.
MOST = 20
_FIRST = "Another trial is at work; this one begins after it."


@dataclass(eq=False)
class PolicyTrial:
    """One trial of a policy.

    Attributes:
        text, reason, stamp: what was typed, and of which policy it was a change. changes: the lines that differ.
        begun: epoch seconds. said: what is being done. outcome: None while it is at work, or where ``silent`` says why
            it could not be tried.
    """

    id: str
    text: str
    reason: str
    stamp: str
    changes: Sequence[tuple[str, str]]
    lacks_members: bool
    begun: float
    said: str = _FIRST
    outcome: Trial | None = None
    silent: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        """Return whether it is over, one way or another."""
        return self.outcome is not None or bool(self.silent)

    def tell(self, words: str) -> None:
        """Keep what is being done."""
        self.said = words

    async def wait(self, seconds: float) -> bool:
        """Wait a little for its end; return whether it is over."""
        if self.task is not None and not self.is_done:
            await asyncio.wait({self.task}, timeout=seconds)
        return self.is_done


class Trials:
    """The trials of one service."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self._log = log
        self._kept: dict[str, PolicyTrial] = {}
        self._turn = asyncio.Lock()

    def get(self, id: str) -> PolicyTrial | None:
        """Return a trial that is still kept."""
        return self._kept.get(id)

    def begin(
        self,
        text: str,
        reason: str,
        stamp: str,
        changes: Sequence[tuple[str, str]],
        *,
        lacks_members: bool,
        now: float,
        work: Callable[[Callable[[str], None]], Awaitable[Trial]],
    ) -> PolicyTrial:
        """Begin a trial; one of the same text that is still at work is the same one.

        Args:
            work: tries the policy, and tells in sentences what it does.
        """
        for known in self._kept.values():
            if not known.is_done and (known.text, known.reason, known.stamp) == (text, reason, stamp):
                return known
        tried = PolicyTrial(secrets.token_hex(8), text, reason, stamp, changes, lacks_members, now)
        tried.task = asyncio.create_task(self._run(tried, work), name=f"trial-{tried.id}")
        self._kept[tried.id] = tried
        over = [id for id, each in self._kept.items() if each.is_done]
        for id in over[: max(0, len(self._kept) - MOST)]:
            del self._kept[id]
        return tried

    async def stop(self) -> None:
        """End what is at work."""
        tasks = [each.task for each in self._kept.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, tried: PolicyTrial, work: Callable[[Callable[[str], None]], Awaitable[Trial]]) -> None:
        try:
            async with self._turn:
                tried.outcome = await work(tried.tell)
        except SlurmError as error:
            self._log.warning("A policy could not be tried: %s", error)
            tried.silent = "Slurm’s accounting does not answer, so it could not be tried."
        except CarmeError as error:
            tried.silent = f"It could not be tried: {error}"
        except Exception:  # noqa: BLE001 - whoever waits for the page is told
            self._log.exception("A policy could not be tried")
            tried.silent = "It could not be tried; the service’s log says why."
