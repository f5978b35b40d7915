"""From a submitted job to a server that answers, or the reason why it never will."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from jupyterhub.spawner import SpawnException
from jupyterhub.utils import make_ssl_context, url_path_join

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.reasons import LAUNCH_CODES, mark_sentence
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import CarmeError
from carme_hub.spawners.form.offers import ended_early
from carme_hub.spawners.hub.probe import SomethingElseAnswers, answers
from carme_hub.spawners.hub.shared import Shared

#: Why a session ended on whose port somebody else was first to listen.
TAKEN = (
    "Something else answers on the session's port: it does not show the certificate of this session, so nobody was led "
    "to it, and the session is ended. Start it again, and tell an administrator."
)
#: Exit statuses of starts that failed by what their user chose: a working folder; and by a full home folder.
CHOSEN, FULL = (77, 78), 79
#: Seconds between two looks whether a server answers yet, and by how much more for each other server that starts.
LOOK, LOOK_MORE = 0.05, 0.005
#: Seconds in which Slurm may say why a server was killed (out of memory, time limit) before its signal is all there is.
EXPLAIN = 20.0


class Arrival:
    """Waits for one server. Every wait ends when the session does, with the reason as a ``SpawnException``."""

    def __init__(self, spawner: Any, part: Shared) -> None:
        self._spawner = spawner
        self._part = part

    async def proved(self, id: str) -> Session:
        """Return the session once its server has reported its port."""
        while True:
            session = self._part.book.current(id)
            if session is None or session.is_ending:
                raise await self.failure(id)
            if session.state is SessionState.RUNNING:
                return session
            await self._part.book.changed(id, 5.0)

    async def address(self, session: Session) -> str:
        """Return where the hub and the proxy reach the server."""
        spawner = self._spawner
        host = session.node
        if spawner.node_address is not None:
            host = spawner.node_address(session.node)
        else:
            try:
                host = await self._known_address(session.node)
            except CarmeError:
                spawner.log.warning("Slurm does not say the address of %s; its name is used", session.node)
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if spawner.internal_ssl else 'http'}://{host}:{session.port}"

    async def _known_address(self, node: str) -> str:
        for max_age in (3600, None):  # a node that was added within the hour is asked for once more
            for known in await self._part.watcher.nodes(max_age=max_age):
                if known.name == node:
                    return known.address or node
        return node

    async def answering(self, session: Session, url: str) -> None:
        """Return once the session's own server answers at the address; end the session when another one does.

        Its port can be taken on the node by any user before it listens; see ``probe``.
        """
        spawner = self._spawner
        context = self._tls_context()
        probe = url_path_join(url, spawner.server.base_url, "api") if spawner.server else url
        waiting = self._part.waiting
        waiting.add(session.id)
        try:
            while not await answers(probe, context, certificate=session.certificate if context else ""):
                current = self._part.book.current(session.id)
                if current is None or current.is_ending:
                    raise await self.failure(session.id)
                await self._part.book.changed(session.id, LOOK + LOOK_MORE * len(waiting))
        except SomethingElseAnswers as error:
            spawner.log.error("Session %s of %s: something else answers on %s", session.id, session.user, url)
            try:
                await self._part.keeper.cancel(session.id, TAKEN)
            except CarmeError as failed:  # JupyterHub stops a server that does not start, which tries again
                spawner.log.error("Session %s cannot be ended now: %s", session.id, failed)
            raise ended_early(TAKEN, "") from error
        finally:
            waiting.discard(session.id)

    async def _explained(self, session: Session) -> Session | None:
        """Return a session whose server has ended, once Slurm has said why where the exit status does not."""
        deadline = time.monotonic() + EXPLAIN
        while session.server_exit > 128 and self._part.book.current(session.id) is not None:
            if time.monotonic() > deadline:
                break
            await self._part.book.changed(session.id, 1.0)
        return await self._part.book.get(session.id)

    def _tls_context(self) -> Any:
        spawner = self._spawner
        if not spawner.internal_ssl:
            return None
        settings = spawner.user.settings
        return _context(settings["internal_ssl_key"], settings["internal_ssl_cert"], settings["internal_ssl_ca"])

    async def failure(self, id: str) -> SpawnException:
        """Return why a session ended before its server answered, with the end of its log."""
        session = await self._part.book.get(id)
        if session is not None and session.server_ended and not session.cancel_wanted:
            session = await self._explained(session)
        why = (session.end_reason or session.cancel_reason) if session else "The session has ended."
        if session is not None and not why:
            mark = EndMark(session.server_exit, session.job_id)
            why = mark_sentence(mark, session.request.working_folder)
        tail = ""
        if session is not None and session.job_id:
            try:
                tail = (await self._part.client.log_tail(session.user, id)).strip()
            except CarmeError as error:
                self._spawner.log.warning("The log of session %s cannot be read: %s", id, error)
        theirs = why == LAUNCH_CODES[FULL] or (session is not None and session.server_exit in CHOSEN)
        return ended_early(why, tail, 400 if theirs else 500)


@lru_cache(maxsize=4)
def _context(key: str, certificate: str, authority: str) -> Any:
    """Return the hub's TLS context; its files stay as they are while the hub runs, and reading them takes a while."""
    return make_ssl_context(key, certificate, cafile=authority)
