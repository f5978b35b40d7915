"""Entries and anomalies as rows of their tables, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import SYSTEM_ACTOR, Entry, Kind
from carme_hub.errors import StoreError

#: The largest amount of one entry; one that leads a sum of an account past 64 bits is refused by the database.
LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that looks wrong and waits for a person. ``seen`` is what was seen, as plain JSON values.

    Attributes:
        found, settled: UTC epoch seconds; ``settled`` is 0 while it waits.
        decision: what ``settled_by`` decided, one sentence. It may be the rules, where a doubt solved itself.
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
        """Return whether a person decided on it."""
        return bool(self.settled) and self.settled_by != SYSTEM_ACTOR


@dataclass(frozen=True, slots=True)
class Note:
    """One version of a fact that is kept by name."""

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
    """Return what ``gpus_text`` wrote. A type may have a colon in its name."""
    parts = (part.rpartition(":") for part in text.split(",") if part)
    return tuple(Gpus(type, int(count)) for type, _, count in parts)


def entry_row(entry: Entry) -> dict[str, Any]:
    """Return the values of an entry's row, without its id."""
    if abs(entry.amount) > LARGEST:
        raise StoreError(f"The amount of {entry.key} is larger than the ledger takes")
    values = {name: getattr(entry, name) for name in Entry.__slots__ if name != "id"}
    values["kind"] = entry.kind.value
    values["gpus"] = gpus_text(entry.gpus)
    for name in ("start", "end", "expires"):
        values[name] = int(values[name])
    values["job_id"] = entry.job_id or None
    values["submitted"] = int(entry.submitted) if entry.job_id else None
    return values


def entry_of(row: Mapping[Any, Any]) -> Entry:
    """Return the entry of a row's values by column."""
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
