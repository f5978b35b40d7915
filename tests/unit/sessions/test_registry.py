"""What the book shows was committed first; a nonce opens a session once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from carme_hub.accounting.context import UNWRITTEN_TIMEOUT
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import Refused, StoreError
from carme_hub.sessions.registry import MAX_HOLD_AGE, TOO_LATE, CallbackRefused, SessionRegistry
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

REQUEST = Request(profile="cpu", image="default")


class StoreThatRefuses(SessionStore):
    """A session table on a full disk."""

    def __init__(self) -> None:
        self.refusing = True

    def add(self, session: Session) -> None:
        raise StoreError("disk full")


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())


@pytest.fixture
def registry(store: SessionStore) -> SessionRegistry:
    return SessionRegistry(store, "lab", clock=lambda: 1000.0)


async def test_an_intent_is_on_disk_when_it_returns(registry: SessionRegistry, store: SessionStore) -> None:
    session, nonce = await registry.intend("s1", "alice", "", REQUEST)
    assert store.get("s1") == session
    assert nonce
    assert nonce not in repr(session)


@pytest.mark.parametrize(("seconds", "starts"), [(0, True), (MAX_HOLD_AGE, True), (MAX_HOLD_AGE + 1, False)])
async def test_a_session_that_is_written_long_after_its_hold_is_not_started(
    registry: SessionRegistry, store: SessionStore, seconds: float, starts: bool
) -> None:
    held = 1000.0 - seconds
    if starts:
        await registry.intend("s1", "alice", "", REQUEST, held=held)
        assert registry.current("s1") is not None
    else:
        with pytest.raises(Refused, match="took too long"):
            await registry.intend("s1", "alice", "", REQUEST, held=held)
        assert registry.current("s1") is None
        written = store.get("s1")
        assert written is not None
        assert (written.state, written.end_reason) == (SessionState.ENDED, TOO_LATE)


def test_a_session_is_written_before_the_ledger_gives_its_hold_back() -> None:
    assert MAX_HOLD_AGE + 15 <= UNWRITTEN_TIMEOUT == 120


async def test_nothing_is_shown_that_was_not_written() -> None:
    registry = SessionRegistry(StoreThatRefuses(), "lab")
    with pytest.raises(StoreError):
        await registry.intend("s1", "alice", "", REQUEST)
    assert registry.open_sessions() == ()


async def test_the_end_of_a_server_is_taken_with_the_nonce_alone_and_the_session_goes_on(
    registry: SessionRegistry, store: SessionStore
) -> None:
    _, nonce = await registry.intend("s1", "alice", "", REQUEST)
    await registry.prove("s1", nonce, 5000, "node1")
    with pytest.raises(CallbackRefused, match="nonce"):
        await registry.server_ended("s1", "guess", 0)
    with pytest.raises(CallbackRefused, match="open"):
        await registry.server_ended("s2", nonce, 0)
    first = await registry.server_ended("s1", nonce, 137)
    assert await registry.server_ended("s1", nonce, 0) == first == store.get("s1")
    assert (first.server_exit, first.server_ended, first.is_ending) == (137, 1000.0, True)
    assert registry.current("s1") == first
    assert not first.cancel_wanted


async def test_a_companion_has_no_nonce_by_which_its_end_could_be_told(registry: SessionRegistry) -> None:
    _, nonce = await registry.intend("c1", "alice", "", REQUEST, parent="s1")
    for guess in (nonce, ""):
        with pytest.raises(CallbackRefused, match="nonce"):
            await registry.server_ended("c1", guess, 0)


async def test_a_port_is_taken_once_and_only_with_the_nonce(registry: SessionRegistry) -> None:
    _, nonce = await registry.intend("s1", "alice", "", REQUEST)
    with pytest.raises(CallbackRefused, match="nonce"):
        await registry.prove("s1", "guess", 5000, "node1")
    with pytest.raises(CallbackRefused, match="1024"):
        await registry.prove("s1", nonce, 80, "node1")
    session = await registry.prove("s1", nonce, 5000, "node1")
    assert (session.state, session.port, session.node) == (SessionState.RUNNING, 5000, "node1")
    with pytest.raises(CallbackRefused):
        await registry.prove("s1", nonce, 5001, "node1")
    current = registry.current("s1")
    assert current is not None
    assert current.port == 5000


async def test_a_call_repeated_because_its_answer_was_lost_is_answered_again(registry: SessionRegistry) -> None:
    _, nonce = await registry.intend("s1", "alice", "", REQUEST)
    first = await registry.prove("s1", nonce, 5000, "node1")
    assert await registry.prove("s1", nonce, 5000, "node1") == first


async def test_two_callbacks_at_once_give_one_port(registry: SessionRegistry) -> None:
    _, nonce = await registry.intend("s1", "alice", "", REQUEST)
    answers = await asyncio.gather(
        *(registry.prove("s1", nonce, 5000 + n, "node1") for n in range(10)), return_exceptions=True
    )
    assert sum(isinstance(a, Session) for a in answers) == 1


async def test_a_session_being_ended_takes_no_port(registry: SessionRegistry) -> None:
    _, nonce = await registry.intend("s1", "alice", "", REQUEST)
    await registry.request_cancel("s1", "stopped")
    with pytest.raises(CallbackRefused, match="being ended"):
        await registry.prove("s1", nonce, 5000, "node1")


async def test_a_wanted_cancel_survives_a_restart(registry: SessionRegistry, store: SessionStore) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    await registry.request_cancel("s1", "stopped by alice")
    again = SessionRegistry(store, "lab")
    await again.load()
    (session,) = again.open_sessions()
    assert session.cancel_wanted == 1000.0
    assert session.cancel_reason == "stopped by alice"


async def test_the_first_reason_of_a_cancel_stays(registry: SessionRegistry) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    await registry.request_cancel("s1", "stopped by alice")
    session = await registry.request_cancel("s1", "start time limit")
    assert session is not None
    assert session.cancel_reason == "stopped by alice"


async def test_waiting_for_a_change_ends_with_the_session(registry: SessionRegistry) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    waiting = asyncio.create_task(registry.wait_for_change("s1", 5.0))
    await asyncio.sleep(0)
    await registry.close("s1", "time limit reached")
    assert await waiting is None
    last = await registry.last_of("alice", "")
    assert last is not None
    assert last.end_reason == "time limit reached"
    assert await registry.close("s1", "again") is None


async def test_how_the_last_session_ended_is_known_after_a_restart(
    registry: SessionRegistry, store: SessionStore
) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    await registry.close("s1", "time limit reached")
    again = SessionRegistry(store, "lab", clock=lambda: 2000.0)
    await again.load()
    for each in (registry, again):
        last = each.last_end("alice", "")
        assert last is not None
        assert last.end_reason == "time limit reached"
    assert again.last_end("bob", "") is None
    await again.intend("s2", "alice", "", REQUEST)
    assert again.last_end("alice", "") is None
