"""The card of a session that was ended as idle says what was given back, and leads on without GPUs where it may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from affected_parts import ID, session
from booked_parts import NOW
from test_cards import hub

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.sessions.session import SessionState
from carme_hub.spawners.home.cards import StoredUse, ended_cards
from carme_hub.spawners.home.idle_end import IdleEndNote, idle_end_notes, refund_of
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import ENDED, WARNED, IdleEvent, IdleStore
from carme_hub.store.ledger.writes import LedgerStore

HOUR = 3_600_000


def entry(kind: Kind, hours: float) -> Entry:
    return Entry(f"{kind.value}-{hours}", kind, "lab", "physics", int(hours * HOUR), NOW, session=ID)


def test_what_was_held_and_not_used_is_given_back() -> None:
    held = entry(Kind.HOLD, -4)
    assert refund_of([]) == ""
    assert refund_of([held]) == "What is held for the rest of its time is given back within a few minutes."
    settled = [held, entry(Kind.CHARGE, -1.5), entry(Kind.RELEASE, 4)]
    assert refund_of(settled) == "2.5 GPU-hours that were held for the rest of its time were given back."


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Any]:
    found = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield found
    found.dispose()


async def test_only_sessions_that_were_ended_as_idle_have_a_note(engine: Any) -> None:
    events, ledger = IdleStore(engine, "lab"), SimpleNamespace(store=LedgerStore(engine))
    events.add(IdleEvent("kept", NOW, WARNED, 300))
    idle = {"action": "release_gpus", "profile": "cpu", "reason": "It was idle for 1 h."}
    for id in (ID, "stopped"):
        events.add(IdleEvent(id, NOW, ENDED, about=idle))
    row = session(id=ID, state=SessionState.ENDED, ended=NOW, end_reason="It was idle for 1 h.")
    stopped = row.replace(id="stopped", end_reason="Stopped by its user, who was faster.")
    with ledger.store.transaction("lab") as writes:
        writes.append([entry(Kind.HOLD, -4)])
    found = await idle_end_notes(events, ledger, "lab", [row, row.replace(id="kept"), stopped], virtual=True)
    words = "What is held for the rest of its time is given back within a few minutes."
    assert found == {ID: IdleEndNote(words, without_gpus=True, profile="cpu")}
    assert await idle_end_notes(events, None, "lab", [row]) == {ID: IdleEndNote("", without_gpus=True, profile="cpu")}
    assert await idle_end_notes(None, None, "lab", [row]) == {}


def test_the_card_has_the_sentence_and_the_link_asks_for_no_gpus() -> None:
    row = session(state=SessionState.ENDED, started=NOW - 3600, ended=NOW, end_reason="It was idle for 1 h.")
    row = row.replace(request=row.request.__class__("gpu", "base", Gpus("a100", 2), account="physics", time_limit=60))
    note = IdleEndNote("2 GPU-hours were given back.", without_gpus=True, profile="cpu")
    [card] = ended_cards(hub(), [row], {}, StoredUse(True, idle_ends={row.id: note}), NOW, virtual=False)
    assert card.reason == "It was idle for 1 h. 2 GPU-hours were given back."
    assert card.again == {"opt-profile": "cpu", "opt-image": "base", "opt-account": "physics"}
    plain = IdleEndNote("2 GPU-hours were given back.")
    [card] = ended_cards(hub(), [row], {}, StoredUse(True, idle_ends={row.id: plain}), NOW, virtual=False)
    assert (card.again["opt-profile"], card.again["opt-gpus"]) == ("gpu", "2")
