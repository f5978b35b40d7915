"""What the home page says of a session that was ended as idle: what the ledger gave back, and how to go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.quotas.idle.rules import Action
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.domain.wording import gpu_hours
from carme_hub.store.idle import IdleEvent, IdleStore
from carme_hub.store.threads import in_store_thread


@dataclass(frozen=True, slots=True)
class IdleEndNote:
    """What there is to say besides the reason.

    Attributes:
        refund: what the ledger gave back, as a sentence; "" = nothing was held. without_gpus: whether the link that
            starts it again asks for none. profile: with which it does, "" = the user chooses.
    """

    refund: str = ""
    without_gpus: bool = False
    profile: str = ""

    def again(self, query: Mapping[str, str], request: Request) -> dict[str, str]:
        """Return the query of the link that starts it again."""
        if not self.without_gpus:
            return dict(query)
        kept = {f"opt-{name}" for name in ("image", "account", "working_folder", *request.fields)}
        left = {name: value for name, value in query.items() if name in kept}
        return left | ({"opt-profile": self.profile} if self.profile else {})


def refund_of(entries: Iterable[Entry]) -> str:
    """Return what a session's hold became, as a sentence: what it did not use is released at its settlement."""
    sums = dict.fromkeys(Kind, 0)
    for entry in entries:
        sums[entry.kind] += entry.amount
    held, charged = -sums[Kind.HOLD], -sums[Kind.CHARGE]
    if held <= 0:
        return ""
    if not sums[Kind.RELEASE]:
        return "What is held for the rest of its time is given back within a few minutes."
    return f"{gpu_hours(max(0, held - charged))} that were held for the rest of its time were given back."


async def idle_end_notes(
    events: IdleStore | None, ledger: Any, cluster: str, ended: Collection[Session], *, virtual: bool = False
) -> dict[str, IdleEndNote]:
    """Return the notes on those of the sessions that were ended because they were idle.

    Args:
        ledger: the ledger's context, None without quotas.

    Raises:
        StoreError: the database fails.
    """
    if events is None or not ended:
        return {}
    rows = {session.id: session for session in ended}
    found = await in_store_thread(events.of, list(rows))
    ends = {id: event for id, some in found.items() for event in some if event.has_ended(rows[id])}
    if not ends:
        return {}
    entries = await in_store_thread(_entries, ledger, cluster, list(ends)) if ledger is not None else {}
    return {id: _note(event, entries.get(id, ()), virtual=virtual) for id, event in ends.items()}


def _entries(ledger: Any, cluster: str, ids: Iterable[str]) -> dict[str, list[Entry]]:
    with ledger.store.reading(cluster) as reads:
        return {id: reads.of_session(id) for id in ids}


def _note(event: IdleEvent, entries: Iterable[Entry], *, virtual: bool) -> IdleEndNote:
    refund = refund_of(entries)
    without_gpus = event.about.get("action") == Action.RELEASE_GPUS.value
    profile = str(event.about.get("profile") or "")
    return IdleEndNote(refund.replace("GPU", "virtual GPU") if virtual else refund, without_gpus, profile)
