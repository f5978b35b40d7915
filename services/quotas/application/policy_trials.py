"""Trials of policies: each runs in a task of its own, so that a page can show its progress.

A trial writes nothing. The last trials are kept in memory, for those who open their page. One trial runs at a time,
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

#: Trials that are kept.
MAX_TRIALS = 20
_WAITING = "Another trial is running; this one starts after it."


@dataclass(eq=False)
class PolicyTrial:
    """One trial of a policy.

    Attributes:
        text, reason: what was typed. stamp: of the policy that it changes. changes: the lines that differ.
        started: epoch seconds. progress: a sentence about the present step. outcome: None while the trial runs and if
            it failed; ``failure`` says why.
    """

    id: str
    text: str
    reason: str
    stamp: str
    changes: Sequence[tuple[str, str]]
    lacks_members: bool
    started: float
    progress: str = _WAITING
    outcome: Trial | None = None
    failure: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        """Whether the trial has ended, with an outcome or a failure."""
        return self.outcome is not None or bool(self.failure)

    def report_progress(self, text: str) -> None:
        """Store the sentence about the present step."""
        self.progress = text

    async def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so many seconds; return whether the trial has ended."""
        if self.task is not None and not self.is_done:
            await asyncio.wait({self.task}, timeout=seconds)
        return self.is_done


class PolicyTrials:
    """The trials of one service."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self._log = log
        self._trials: dict[str, PolicyTrial] = {}
        self._lock = asyncio.Lock()

    def get(self, id: str) -> PolicyTrial | None:
        """Return a trial that is still kept."""
        return self._trials.get(id)

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
        """Start a trial, or return the running one of the same text.

        Args:
            work: tries the policy; it reports its progress in sentences.
        """
        for known in self._trials.values():
            if not known.is_done and (known.text, known.reason, known.stamp) == (text, reason, stamp):
                return known
        trial = PolicyTrial(secrets.token_hex(8), text, reason, stamp, changes, lacks_members, now)
        trial.task = asyncio.create_task(self._run(trial, work), name=f"trial-{trial.id}")
        self._trials[trial.id] = trial
        ended = [id for id, each in self._trials.items() if each.is_done]
        for id in ended[: max(0, len(self._trials) - MAX_TRIALS)]:
            del self._trials[id]
        return trial

    async def stop(self) -> None:
        """Cancel the running trials."""
        tasks = [each.task for each in self._trials.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, trial: PolicyTrial, work: Callable[[Callable[[str], None]], Awaitable[Trial]]) -> None:
        try:
            async with self._lock:
                trial.outcome = await work(trial.report_progress)
        except SlurmError as error:
            self._log.warning("A policy could not be tried: %s", error)
            trial.failure = "Slurm’s accounting does not answer, so it could not be tried."
        except CarmeError as error:
            trial.failure = f"It could not be tried: {error}"
        except Exception:  # noqa: BLE001 - the page shows that the trial failed
            self._log.exception("A policy could not be tried")
            trial.failure = "It could not be tried; the service’s log says why."
