"""Check that Slurm has as many of each license as there are GPUs that are counted by it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from carme_hub.domain.calendar.licenses import license_problems
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmUnreachable

#: Seconds for which an answer is used again: licenses change only when somebody edits slurm.conf.
MAX_AGE = 60.0


class LicenseCounts:
    """Slurm's licenses in its last answer, which stays while Slurm does not answer.

    Args:
        licenses: the license that counts each GPU type, {} = none, and Slurm is not asked.
        ask: returns how many of each license Slurm has.
    """

    def __init__(
        self,
        licenses: Mapping[str, str],
        ask: Callable[[], Awaitable[Mapping[str, int]]] | None,
        *,
        clock: Callable[[], float],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._licenses, self._ask = licenses, ask
        self._clock, self._log = clock, log
        self._asked = float("-inf")
        #: Why the licenses do not match the GPUs, in sentences.
        self.faults: tuple[str, ...] = ()
        #: GPU types whose license Slurm does not have.
        self.missing: frozenset[str] = frozenset()

    async def look(self, nodes: Iterable[Node]) -> None:
        """Compare Slurm's licenses with the GPUs of all nodes, unless the last answer is fresh."""
        if not self._licenses or self._ask is None or 0 <= self._clock() - self._asked < MAX_AGE:
            return
        try:
            there = await self._ask()
        except SlurmUnreachable as error:
            self._log.warning("Slurm's licenses could not be read, the last answer stays: %s", error)
            return
        self._asked, gpus = self._clock(), Counter[str]()
        for node in nodes:
            gpus.update(dict(node.gpus))
        found = license_problems(self._licenses, there, gpus)
        for words in found:
            if words not in self.faults:
                self._log.error("CarmeReservations.licenses: %s", words)
        if self.faults and not found:
            self._log.info("CarmeReservations.licenses: Slurm has as many of each license as there are GPUs")
        self.faults = found
        self.missing = frozenset(type for type, name in self._licenses.items() if name not in there)
