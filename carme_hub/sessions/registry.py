"""The registry of sessions, the only writer of their rows: a change is committed before it is visible in memory.

A hub process owns the open sessions of its cluster. It reads the rows once at its start; every change is written by a
thread and only then published to the rest of the process, so that after a crash the rows contain every change on which
anything was done. Spawners, handlers and the reconciler call it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from carme_hub.crash import crash_point
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import Refused, StoreError
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

Clock = Callable[[], float]

#: Seconds for which pages show how the last session of a server ended.
LAST_END_KEPT = 7 * 24 * 3600.0
#: Seconds after its hold in which a session must be written. Later the ledger may have released the hold
#: (``accounting.context.UNWRITTEN_TIMEOUT``), and the session would run without one.
MAX_HOLD_AGE = 90.0
TOO_LATE = "The hub's database took too long to store this session, so it was not started. Start it again."
#: Newest companions of one session that are listed.
MAX_COMPANIONS = 200


class CallbackRefused(Refused):
    """The start-up callback was not accepted; the message is for the job's log."""

    reason = "callback-refused"


def hash_nonce(nonce: str) -> str:
    """Return the hash of a nonce, which is stored; the nonce itself is only in the session's data document."""
    return hashlib.sha256(nonce.encode()).hexdigest()


class SessionRegistry:
    """Open sessions of one cluster, in memory and on disk.

    Args:
        store: the table. cluster: Slurm's cluster name. clock: returns UTC epoch seconds.
    """

    def __init__(self, store: SessionStore, cluster: str, clock: Clock = time.time) -> None:
        self._store = store
        self._clock = clock
        self.cluster = cluster
        self._open: dict[str, Session] = {}
        # Every poll of every server asks for its own sessions, so there is an index by server.
        self._of_server: dict[tuple[str, str], dict[str, None]] = {}
        self._of_parent: dict[str, dict[str, None]] = {}
        self._ends: dict[tuple[str, str], Session] = {}
        self._waiters: dict[str, asyncio.Event] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._listeners: list[Callable[[Session], None]] = []

    async def load(self) -> None:
        """Read the open rows; called once, before anything else."""
        for session in await in_store_thread(self._store.open_sessions, self.cluster):
            self._note(session)
        for session in await in_store_thread(self._store.last_ends, self.cluster, self._clock() - LAST_END_KEPT):
            self._ends[session.user, session.server_name] = session

    async def ping(self) -> None:
        """Ask the database for nothing; raise ``StoreError`` if it does not answer."""
        await in_store_thread(self._store.ping)

    def last_end(self, user: str, server_name: str) -> Session | None:
        """Return the last ended session of a server, for pages; None if that is long ago or there was none."""
        session = self._ends.get((user, server_name))
        return session if session is not None and session.ended > self._clock() - LAST_END_KEPT else None

    def open_sessions(self) -> tuple[Session, ...]:
        """Return every session that has not ended, oldest first."""
        return tuple(self._open.values())

    def open_of(self, user: str, server_name: str) -> tuple[Session, ...]:
        """Return the open sessions of one server: usually none or one, more while old ones are being cancelled.

        Companions are not included.
        """
        return tuple(self._open[id] for id in self._of_server.get((user, server_name), ()))

    def companions_of(self, parent: str) -> tuple[Session, ...]:
        """Return the open companions of a session, oldest first."""
        return tuple(self._open[id] for id in self._of_parent.get(parent, ()))

    def batch_jobs_of(self, user: str) -> tuple[Session, ...]:
        """Return the open batch jobs of a user, oldest first."""
        return tuple(each for each in self._open.values() if each.request.batch and each.user == user)

    async def all_batch_jobs_of(self, user: str) -> tuple[Session, ...]:
        """Return the newest batch jobs of a user, open or ended, oldest first."""
        found = await in_store_thread(self._store.companions_of_user, user, self.cluster, MAX_COMPANIONS)
        jobs = {each.id: each for each in (*found, *self.batch_jobs_of(user)) if each.request.batch}
        return tuple(sorted((self._open.get(id, each) for id, each in jobs.items()), key=lambda each: each.created))

    async def all_companions_of(self, parent: str) -> tuple[Session, ...]:
        """Return the newest companions of a session, open or ended, oldest first."""
        found = await in_store_thread(self._store.companions_of, parent, MAX_COMPANIONS)
        return tuple(self._open.get(session.id, session) for session in found)

    def current(self, id: str) -> Session | None:
        """Return an open session, None if it has ended or does not exist."""
        return self._open.get(id)

    async def get(self, id: str) -> Session | None:
        """Return a session, open or ended."""
        return self._open.get(id) or await in_store_thread(self._store.get, id)

    async def ended_of(self, user: str, since: float, limit: int) -> list[Session]:
        """Return the sessions of a user that ended after a time, the newest first, without companions."""
        return await in_store_thread(self._store.ended_of, user, self.cluster, since, limit)

    async def ended(self, ids: Sequence[str]) -> list[Session]:
        """Return the sessions among these ids that have ended, in the order of the ids."""
        found = {each.id: each for each in await in_store_thread(self._store.get_all, ids)}
        return [found[id] for id in ids if id in found and found[id].state is SessionState.ENDED]

    async def last_of(self, user: str, server_name: str) -> Session | None:
        """Return the newest session of a server, open or ended."""
        return await in_store_thread(self._store.last_of, user, server_name)

    def on_change(self, listener: Callable[[Session], None]) -> None:
        """Call the listener after every committed change."""
        self._listeners.append(listener)

    async def intend(
        self,
        id: str,
        user: str,
        server_name: str,
        request: Request,
        token_id: int = 0,
        certificate: str = "",
        parent: str = "",
        held: float | None = None,
    ) -> tuple[Session, str]:
        """Write the intent to start a session; return it and its one-time nonce. It is committed on return.

        Args:
            parent: the session whose companion it is, "" for none. A companion makes no callback, so no nonce fits it.
            held: time of its hold (UTC epoch seconds), None if there is none.

        Raises:
            Refused: it was written too late after its hold; it is closed.
        """
        nonce = secrets.token_urlsafe(32)
        session = Session(
            id=id,
            cluster=self.cluster,
            user=user,
            server_name=server_name,
            request=request,
            state=SessionState.INTENDED,
            created=self._clock(),
            nonce_hash=hash_nonce(nonce) if not parent else "",
            token_id=token_id,
            certificate=certificate,
            parent=parent,
        )
        await asyncio.shield(self._write_new(session))
        crash_point("intended")
        if held is not None and self._clock() - held > MAX_HOLD_AGE:
            await self.close(id, TOO_LATE)
            raise Refused(TOO_LATE, reason="too-slow")
        return session, nonce

    async def mark_submitted(self, id: str, job_id: int, submitted: float) -> Session:
        """Record the job id and submit time of the session's job."""

        def change(session: Session) -> Session:
            state = SessionState.SUBMITTED if session.state is SessionState.INTENDED else session.state
            return session.replace(state=state, job_id=job_id, submitted=submitted or session.submitted)

        return await self._change(id, change)

    async def prove(self, id: str, nonce: str, port: int, node: str) -> Session:
        """Record the port of a starting server, once; ``node`` is the node of its job in Slurm.

        Raises:
            CallbackRefused: wrong nonce, session not pending, or another port was recorded before.
        """

        def change(session: Session) -> Session:
            _check_nonce(session, nonce)
            if session.port == port:
                return session  # a repeated call: the hub that received the first one ended before it answered
            if session.port:
                raise CallbackRefused("a port was reported already")
            if session.is_ending:
                raise CallbackRefused("the session is being ended")
            if not 1024 <= port <= 65535:
                raise CallbackRefused("a port is a number from 1024 to 65535")
            return session.replace(state=SessionState.RUNNING, port=port, node=node, started=self._clock())

        if id not in self._open:
            raise CallbackRefused("no such session is waiting for its server")
        return await self._change(id, change)

    async def server_ended(self, id: str, nonce: str, status: int) -> Session:
        """Record that a session's server has ended, as its job's supervisor reports.

        Args:
            status: the server's exit status, 0 to 255; 128 + n for signal n.

        Raises:
            CallbackRefused: wrong nonce, or no such session is open.
        """

        def change(session: Session) -> Session:
            _check_nonce(session, nonce)
            if session.server_ended:
                return session  # the answer to the first call was lost
            return session.replace(server_ended=self._clock(), server_exit=status)

        if id not in self._open:
            raise CallbackRefused("no such session is open")
        return await self._change(id, change)

    async def mark_running(self, id: str, node: str) -> Session:
        """Record that a companion's job runs: it has no server that reports it. ``node`` is the first of its nodes."""

        def change(session: Session) -> Session:
            if not session.parent or session.state is SessionState.RUNNING:
                return session
            return session.replace(state=SessionState.RUNNING, node=node, started=self._clock())

        return await self._change(id, change)

    async def mark_saved(self, id: str) -> Session:
        """Record that the controller has the session's job in its saved state."""
        return await self._change(
            id, lambda session: session if session.saved else session.replace(saved=self._clock())
        )

    async def set_time_limit(self, id: str, minutes: int) -> Session:
        """Record a new time limit in minutes."""
        return await self._change(
            id, lambda session: session.replace(request=replace(session.request, time_limit=minutes))
        )

    async def request_cancel(self, id: str, reason: str) -> Session | None:
        """Store the request to end the session; the reconciler cancels until the job is seen terminal."""
        if id not in self._open:
            return None

        def change(session: Session) -> Session:
            if session.cancel_wanted:
                return session
            return session.replace(cancel_wanted=self._clock(), cancel_reason=reason)

        session = await self._change(id, change)
        crash_point("cancel-wanted")
        return session

    async def close(self, id: str, reason: str, at: float = 0.0) -> Session | None:
        """Set a session to ended: its job was seen terminal, or was proved never to have existed."""
        if id not in self._open:
            return None

        def change(session: Session) -> Session:
            return session.replace(
                state=SessionState.ENDED, ended=at or self._clock(), end_reason=reason, nonce_hash=""
            )

        return await self._change(id, change)

    async def wait_for_change(self, id: str, limit: float) -> Session | None:
        """Wait until the session changes, at most ``limit`` seconds; return it then, None if it has ended."""
        event = self._waiters.setdefault(id, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), limit)
        return self._open.get(id)

    async def _change(self, id: str, change: Callable[[Session], Session]) -> Session:
        lock = self._locks.setdefault(id, asyncio.Lock())
        async with lock:
            before = self._open.get(id)
            if before is None:
                raise StoreError(f"Session {id} has ended")
            after = change(before)
            if after != before:
                # Shielded: after a cancelled request, memory must not be older than the database.
                await asyncio.shield(self._write(after))
            return after

    async def _write_new(self, session: Session) -> None:
        await in_store_thread(self._store.add, session)
        self._publish(session)

    async def _write(self, session: Session) -> None:
        try:
            await in_store_thread(self._store.save, session)
        except StoreError:
            # The answer to an earlier write may have been lost: a session that has ended in the table is not open.
            on_disk = await in_store_thread(self._store.get, session.id)
            if on_disk is not None and on_disk.state is SessionState.ENDED:
                self._publish(on_disk)
            raise
        self._publish(session)

    def _publish(self, session: Session) -> None:
        if session.state is SessionState.ENDED:
            self._open.pop(session.id, None)
            for index, key in self._indexes(session):
                ids = index.get(key, {})
                ids.pop(session.id, None)
                if not ids:
                    index.pop(key, None)
            if not session.parent:
                self._ends[session.user, session.server_name] = session
            self._locks.pop(session.id, None)
        else:
            self._note(session)
            if not session.parent:
                self._ends.pop((session.user, session.server_name), None)  # a new session replaces the last end
        event = self._waiters.pop(session.id, None)
        if event is not None:
            event.set()
        for listener in self._listeners:
            listener(session)

    def _note(self, session: Session) -> None:
        self._open[session.id] = session
        for index, key in self._indexes(session):
            index.setdefault(key, {})[session.id] = None

    def _indexes(self, session: Session) -> Iterator[tuple[dict[Any, dict[str, None]], Hashable]]:
        """Yield the indexes and keys of a session, besides its id; its server and its parent never change."""
        if session.parent:
            yield self._of_parent, session.parent
        else:
            yield self._of_server, (session.user, session.server_name)


def _check_nonce(session: Session, nonce: str) -> None:
    if not hmac.compare_digest(session.nonce_hash, hash_nonce(nonce)):
        raise CallbackRefused("this is not the session's nonce")
