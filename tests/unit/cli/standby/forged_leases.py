"""A lease table in memory, by a forged clock; its rules are those that test_lease_store.py proves of the SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from carme_hub.errors import StoreError
from carme_hub.fencing import Ticket
from carme_hub.store.lease.lease import Lease


class ForgedLeases:
    """The lease of one cluster, and its fence."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._beat = 0.0
        self._row = Lease("lab", 0, "", "", 0.0, 0.0, 0.0, "", "")
        self.fence = Ticket(0, "", "lab")
        #: While it is set, every call fails with it.
        self.silent = ""
        #: Tokens of accepted writes, in order.
        self.written: list[int] = []

    @property
    def row(self) -> Lease:
        return replace(self._row, age=self._clock() - self._beat)

    def acquire(self, holder: str, host: str, seconds: float, secrets: str, release: str) -> Lease:
        self._answer()
        if self.row.free and self._row.secrets in ("", secrets):
            token = max(self._row.token, self.fence.token) + 1
            self._beat = self._clock()
            self._row = Lease("lab", token, holder, host, self._beat, 0.0, seconds, secrets, release)
        return self.row

    def renew(self, ticket: Ticket) -> bool:
        self._answer()
        mine = self._row.ticket == ticket and not self.row.free
        if mine:
            self._beat = self._clock()
        return mine

    def release(self, ticket: Ticket) -> bool:
        self._answer()
        mine = self._row.ticket == ticket
        if mine:
            self._row, self._beat = replace(self._row, holder=""), 0.0
        return mine

    def take_fences(self, ticket: Ticket) -> bool:
        self._answer()
        if self.fence.token < ticket.token:
            self.fence = ticket
        return self.fence == ticket

    def write(self, ticket: Ticket) -> bool:
        """Write as a hub does; return whether the database took it."""
        if self.fence == ticket:
            self.written.append(ticket.token)
        return self.fence == ticket

    def _answer(self) -> None:
        if self.silent:
            raise StoreError(self.silent)
