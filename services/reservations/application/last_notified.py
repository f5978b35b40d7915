"""State of each booking at its last notification, in the database, so that no change is lost by a restart.

It is written after the notices were sent. A service that is killed in between finds the same changes again; the notice
about one version is sent once. The data is split over several notes, so that a change writes a small part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from carme_hub.domain.calendar.capacity import Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, Reservation, State
from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.store.threads import in_store_thread

#: The first digits of ids, one for each note.
_PARTS = "0123456789abcdef"
#: Version, state, start, end and nodes, as JSON keeps them.
Known = dict[str, list[Any]]


class LastNotified:
    """The state of current and future bookings as their users were last notified."""

    def __init__(self, stores: IdempotencyStore) -> None:
        self._stores = stores
        self._parts: dict[str, Known] | None = None

    async def before(self, known: Iterable[Reservation]) -> Mapping[str, Reservation]:
        """Return bookings as they were, by id, without those that nobody was notified of."""
        if self._parts is None:
            self._parts = await in_store_thread(self._read)
        parts = self._parts
        return {each.id: _as_it_was(each, was) for each in known if (was := parts[_part(each)].get(each.id))}

    async def keep(self, known: Iterable[Reservation]) -> None:
        """Store the current state of bookings, and forget all others."""
        parts: dict[str, Known] = {part: {} for part in _PARTS}
        for each in known:
            if each.kind is Kind.BOOKING and each.state in HOLDING:
                now = (each.version, each.state.value, each.period.start, each.period.end)
                parts[_part(each)][each.id] = [*now, [place.node for place in each.places]]
        changed = {part: said for part, said in parts.items() if self._parts is None or said != self._parts[part]}
        if changed:
            await in_store_thread(self._write, changed)
        self._parts = parts

    def _read(self) -> dict[str, Known]:
        with self._stores.store.reading(self._stores.cluster) as reads:
            notes = {part: reads.note(_name(part)) for part in _PARTS}
        return {part: dict(note.value) if note else {} for part, note in notes.items()}

    def _write(self, changed: Mapping[str, Known]) -> None:
        with self._stores.store.transaction(self._stores.cluster) as writes:
            for part, said in changed.items():
                writes.replace_note(_name(part), said, self._stores.clock())


def _part(one: Reservation) -> str:
    return one.id[0] if one.id[0] in _PARTS else _PARTS[0]


def _name(part: str) -> str:
    return f"bookings-told/{part}"


def _as_it_was(one: Reservation, was: list[Any]) -> Reservation:
    """Return a booking as it was, in the fields that notices use."""
    version, state, start, end, nodes = was
    places = tuple(Place(node, one.need.type, 1, 1) for node in nodes)
    return one.replace(version=version, state=State(state), period=Period(start, end), places=places)
