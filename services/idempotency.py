"""Writes by REST are done once for each Idempotency-Key, also when two come at the same moment, to two services."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from carme_hub.accounting.grants import KeyUsed
from carme_hub.errors import Refused
from carme_hub.store.ledger.idempotency import Claim, digest
from carme_hub.store.ledger.writes import LedgerStore, LedgerWrites
from carme_hub.store.threads import in_store_thread

T = TypeVar("T")

#: Seconds for which who comes second waits for what comes of the first.
PATIENCE = 10.0
#: Seconds after which a claim without an answer is free: whoever worked on it is gone. Work that takes longer may be
#: done twice then, and the ledger writes it once all the same.
LEASE = 60.0
#: Seconds for which answers are kept. What was written stays known to the ledger by its key for ever.
KEPT = 30 * 86_400.0
_LOOK = 0.05


class StillWorking(Refused):
    """The same request came before, and has no answer yet."""

    reason = "still-working"


class IdempotencyStore(Protocol):
    """Where keys and answers are kept."""

    @property
    def store(self) -> LedgerStore:
        """The database."""
        ...

    @property
    def cluster(self) -> str:
        """Whose keys they are."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """Epoch seconds."""
        ...


class Once:
    """One request under one key.

    Args:
        kept: where keys and answers are. key: of who asks and which key they sent. where: method and address; with
            the body it says what is asked.
    """

    def __init__(self, kept: IdempotencyStore, key: str, where: str, body: BaseModel | None) -> None:
        self._kept = kept
        said = json.dumps(body.model_dump(mode="json") if body is not None else None, sort_keys=True)
        self._ours = Claim(digest(f"{kept.cluster}\0{key}"), digest(f"{where}\0{said}"), uuid.uuid4().hex, kept.clock())

    async def claim(self) -> dict[str, Any] | None:
        """Return the answer that was given under this key, None where the work is ours to do now.

        Raises:
            KeyUsed: the key stands for another request. StillWorking: somebody else works on this one.
        """
        until, pause = time.monotonic() + PATIENCE, _LOOK
        while True:
            found = await self._write(lambda writes: writes.claim(self._ours, lease=LEASE, keep=KEPT))
            if found.digest != self._ours.digest:
                raise KeyUsed("This Idempotency-Key was used for something else. Take a new key for a new request.")
            if found.token == self._ours.token:
                return None
            if found.answer is not None:
                return dict(json.loads(found.answer))
            if time.monotonic() > until:
                raise StillWorking("This request came before and is still being worked on. Send it again in a moment.")
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)

    async def keep(self, answer: dict[str, Any]) -> None:
        """Keep the answer for who sends the same again."""
        text = json.dumps(answer)
        await self._write(lambda writes: writes.answer_claim(self._ours, text))

    async def drop(self) -> None:
        """Free the key: nothing came of it."""
        await self._write(lambda writes: writes.drop_claim(self._ours))

    async def _write(self, change: Callable[[LedgerWrites], T]) -> T:
        def write() -> T:
            with self._kept.store.transaction(self._kept.cluster) as writes:
                return change(writes)

        return await asyncio.shield(in_store_thread(write))
