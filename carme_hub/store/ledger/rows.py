"""Convert entries and anomalies to rows of their tables and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import SYSTEM_ACTOR, Entry, Kind
from carme_hub.errors import StoreError

#: The largest amount of one entry; the database refuses an entry that leads a sum of an account beyond 64 bits.
MAX_AMOUNT = 2**62


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A record that looks wrong and waits for a person. ``seen`` has its values as plain JSON.

    Attributes:
        found, settled: UTC epoch seconds; ``settled`` is 0 while it is open.
        decision: the decision of ``settled_by`` in one sentence; that is ``SYSTEM_ACTOR`` if it resolved itself.
    """

    key: str
    kind: str
    cluster: str
    found: float
    job_id: int = 0
    submitted: int = 0
    account: str = ""
    user: str = ""
    seen: Mapping[str, Any] = field(default_factory=dict)
    settled: float = 0.0
    settled_by: str = ""
    decision: str = ""
    id: int = 0

    @property
    def by_person(self) -> bool:
        """Return whether a person has decided on it."""
        return bool(self.settled) and self.settled_by != SYSTEM_ACTOR


@dataclass(frozen=True, slots=True)
class Note:
    """One version of a named value."""

    name: str
    at: float
    actor: str
    value: Any
    id: int = 0


def gpus_text(gpus: tuple[Gpus, ...]) -> str:
    """Return ``a100:2,h100:1``."""
    return ",".join(f"{each.type}:{each.count}" for each in gpus if each)


@lru_cache(maxsize=1024)
def gpus_of(text: str) -> tuple[Gpus, ...]:
    """Return the GPUs of a text by ``gpus_text``. A type may contain a colon."""
    parts = (part.rpartition(":") for part in text.split(",") if part)
    return tuple(Gpus(type, int(count)) for type, _, count in parts)


def entry_row(entry: Entry) -> dict[str, Any]:
    """Return the values of an entry's row, without its id."""
    if abs(entry.amount) > MAX_AMOUNT:
        raise StoreError(f"The amount of {entry.key} is larger than the ledger accepts")
    values = {name: getattr(entry, name) for name in Entry.__slots__ if name != "id"}
    values["kind"] = entry.kind.value
    values["gpus"] = gpus_text(entry.gpus)
    for name in ("start", "end", "expires"):
        values[name] = int(values[name])
    values["job_id"] = entry.job_id or None
    values["submitted"] = int(entry.submitted) if entry.job_id else None
    return values


def entry_of(row: Mapping[Any, Any]) -> Entry:
    """Return the entry of a row, given as values by column."""
    values: dict[str, Any] = dict(row)
    try:
        values["kind"] = Kind(values["kind"])
        values["gpus"] = gpus_of(values["gpus"])
        values["job_id"] = values["job_id"] or 0
        values["submitted"] = values["submitted"] or 0
        return Entry(**values)
    except (TypeError, KeyError, ValueError) as error:
        raise StoreError(f"Ledger row {values.get('id')} cannot be understood: {error}") from error


def anomaly_row(anomaly: Anomaly) -> dict[str, Any]:
    """Return the values of an anomaly's row, without its id."""
    values = asdict(anomaly)
    del values["id"]
    return values
