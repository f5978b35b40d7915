"""Reservations as tests of their GPU time have them: each call is one transaction of the site's ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forged_site import ADA, HOUR, MONDAY, Site, a100

from carme_hub.accounting.admission import admit
from carme_hub.accounting.slots import holds, settlement
from carme_hub.accounting.slots.holds import Slot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.decision import Decision
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.ledger.writes import LedgerWrites


def slot(id: str = "r1", start: float = MONDAY + HOUR, length: float = 2 * HOUR, gpus: int = 4, **more: Any) -> Slot:
    """Four GPUs for two hours, from an hour after Monday began."""
    account, user = more.get("account", "physics"), more.get("user", "ada")
    return Slot(id, user, account, Gpus(more.get("type", "a100"), gpus), int(start), int(start + length), "Deep “2”")


@dataclass
class SlotLedger:
    """The site's ledger, asked about reservations."""

    site: Site

    @contextmanager
    def open(self) -> Iterator[LedgerWrites]:
        with self.site.store.transaction("lab") as writes:
            yield writes

    def hold(self, which: Slot, person: Person = ADA) -> Decision:
        with self.open() as writes:
            return holds.hold(self.site.ledger.context, writes, which, person, "ada")

    def change(self, which: Slot, person: Person = ADA) -> Decision:
        with self.open() as writes:
            return holds.change(self.site.ledger.context, writes, which, person, "ada")

    def lower_hold(self, which: Slot, *inside: str, **more: Any) -> int:
        with self.open() as writes:
            return holds.lower_hold(self.site.ledger.context, writes, which, self.site.now, inside, **more)

    def return_unusable(self, which: Slot, gpu_seconds: int, least: int = 0) -> int:
        with self.open() as writes:
            return settlement.return_unusable(writes, which, self.site.now, gpu_seconds, least)

    def settle(self, which: Slot, *, ended: float = 0, booked: bool = True, used: int | Mapping[str, int] = 0) -> bool:
        at = int(ended or which.end)
        used = {which.gpus.type: used} if isinstance(used, int) else used
        with self.open() as writes:
            return settlement.settle_slot(
                self.site.ledger.context, writes, which, self.site.now, ended=at, booked=booked, used=used
            )

    def release_hold(self, which: Slot) -> bool:
        with self.open() as writes:
            return holds.release_hold(self.site.ledger.context, writes, which, "cancelled", "ada")

    def held(self) -> dict[str, int]:
        with self.site.store.reading("lab") as reads:
            return holds.held_amounts(reads)

    def entries(self, id: str = "r1") -> list[Entry]:
        with self.site.store.reading("lab") as reads:
            return reads.of_session(id)

    # -- sessions in it -----------------------------------------------------------------------------------------------

    def start(self, id: str, gpus: int = 1, length: float = HOUR, within: str = "r1", person: Person = ADA) -> bool:
        """Admit a session whose job begins at once; return whether it was."""
        ask = a100(gpus, int(length))
        granted = admit(self.site.ledger.context, id, person, ask, "gpu", "normal", slot=within).granted
        if granted:
            self.site.session(id, user=person.user)
            self.site.session(id, job_id=100 + len(self.site.rows), started=self.site.now, state=SessionState.RUNNING)
        return granted

    async def end(self, id: str, began: float, gpus: int = 1) -> None:
        """End a session's job now, and settle it."""
        row = self.site.session(id, state=SessionState.ENDED, ended=self.site.now)
        job = self.site.usage_of(id, row.job_id, began, self.site.now, gpus=(Gpus("a100", gpus),))
        await self.site.settle(job)
