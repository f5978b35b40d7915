"""Idempotent writes by REST: a write is done once for each ``Idempotency-Key``.

That holds when the same request arrives twice at the same moment, also at two service processes: the key is claimed in
the database. ``services.rest`` wraps each write in an ``IdempotentWrite``.
"""

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

#: Seconds for which a repeated request waits for the answer of the first one.
WAIT = 10.0
#: Seconds after which a claim without an answer is free, since its process must be gone. Work that takes longer may
#: then be done twice; the ledger still writes it once.
LEASE = 60.0
#: Seconds for which answers are kept. The ledger keeps the keys of its entries for ever.
RETENTION = 30 * 86_400.0
_POLL = 0.05


class RequestInProgress(Refused):
    """The same request arrived before, and has no answer yet."""

    reason = "still-working"


class IdempotencyStore(Protocol):
    """The database of a service, in which keys and answers are kept: the ledger's context or the calendar's."""

    @property
    def store(self) -> LedgerStore:
        """The database."""
        ...

    @property
    def cluster(self) -> str:
        """The cluster to which the keys belong."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """Epoch seconds."""
        ...


class IdempotentWrite:
    """One request with its key.

    Args:
        store: keeps keys and answers. key: made of the visitor and the key that they sent. target: method and path;
            together with the body it identifies the request.
    """

    def __init__(self, store: IdempotencyStore, key: str, target: str, body: BaseModel | None) -> None:
        self._store = store
        content = json.dumps(body.model_dump(mode="json") if body is not None else None, sort_keys=True)
        request = digest(f"{target}\0{content}")
        self._claim = Claim(digest(f"{store.cluster}\0{key}"), request, uuid.uuid4().hex, store.clock())

    async def claim(self) -> dict[str, Any] | None:
        """Claim the key; return the stored answer, or None if the caller has to do the work now.

        Raises:
            KeyUsed: the key was used for another request. RequestInProgress: the first request has no answer yet.
        """
        until, pause = time.monotonic() + WAIT, _POLL
        while True:
            found = await self._write(lambda writes: writes.claim(self._claim, lease=LEASE, keep=RETENTION))
            if found.digest != self._claim.digest:
                raise KeyUsed("This Idempotency-Key was used for something else. Use a new key for a new request.")
            if found.token == self._claim.token:
                return None
            if found.answer is not None:
                return dict(json.loads(found.answer))
            if time.monotonic() > until:
                raise RequestInProgress("The same request is still being worked on. Send it again in a moment.")
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)

    async def store_answer(self, answer: dict[str, Any]) -> None:
        """Store the answer for repeated requests."""
        text = json.dumps(answer)
        await self._write(lambda writes: writes.answer_claim(self._claim, text))

    async def release(self) -> None:
        """Release the key after an error."""
        await self._write(lambda writes: writes.drop_claim(self._claim))

    async def _write(self, change: Callable[[LedgerWrites], T]) -> T:
        def write() -> T:
            with self._store.store.transaction(self._store.cluster) as writes:
                return change(writes)

        return await asyncio.shield(in_store_thread(write))
