"""Waits from the submission of a job until its server answers, or returns the reason why it failed.

The Slurm spawner uses it at a start, and after a restart of the hub.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from jupyterhub.spawner import SpawnException
from jupyterhub.utils import make_ssl_context, url_path_join

from carme_hub import metrics, traces
from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.reasons import LAUNCH_CODES, mark_sentence
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.domain.staging.progress import StageState
from carme_hub.domain.staging.progress import why as not_staged
from carme_hub.errors import CarmeError
from carme_hub.spawners.form.offers import ended_early
from carme_hub.spawners.hub.probe import WrongCertificate, answers
from carme_hub.spawners.hub.shared import HubContext

#: The end reason of a session on whose port another program listens.
PORT_TAKEN = (
    "Another program answers on the session's port: it does not show this session's certificate, so the hub has not "
    "connected you to it, and ends the session. Start it again, and tell an administrator."
)
#: Exit statuses of starts that failed because of the user's working folder, and because of a full home folder.
USER_FAULTS, HOME_FULL = (77, 78, 86), 79
#: Exit status of a start whose data is not on the node; the node's report says why.
NOT_STAGED = 86
#: Seconds between two probes of a server, and additional seconds for each other server that starts.
POLL_INTERVAL, POLL_PER_START = 0.05, 0.005
#: Seconds to wait for Slurm's reason why a server was killed (out of memory, time limit); then the signal is reported.
REASON_TIMEOUT = 20.0


class ServerReadiness:
    """Waits for one server. Every wait ends when the session does, with the reason as a ``SpawnException``."""

    def __init__(self, spawner: Any, hub: HubContext) -> None:
        self._spawner = spawner
        self._hub = hub

    async def wait_for_callback(self, id: str) -> Session:
        """Return the session once its server has called back with its port."""
        while True:
            session = self._hub.registry.current(id)
            if session is None or session.is_ending:
                raise await self.failure(id)
            if session.state is SessionState.RUNNING:
                return session
            await self._hub.registry.wait_for_change(id, 5.0)

    async def address(self, session: Session) -> str:
        """Return the server's URL for hub and proxy."""
        spawner = self._spawner
        host = session.node
        if spawner.node_address is not None:
            host = spawner.node_address(session.node)
        else:
            try:
                host = await self._known_address(session.node)
            except CarmeError:
                spawner.log.warning("Slurm does not report the address of %s, so its name is used", session.node)
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if spawner.internal_ssl else 'http'}://{host}:{session.port}"

    async def _known_address(self, node: str) -> str:
        for max_age in (3600, None):  # a node that was added within the hour needs a new query
            for known in await self._hub.watcher.nodes(max_age=max_age):
                if known.name == node:
                    return known.address or node
        return node

    async def wait_until_answering(self, session: Session, url: str, *, starting: bool = False) -> None:
        """Return once the session's own server answers at the URL; end the session if another program answers.

        Any user of the node can take the port before the server listens; see ``probe``.

        Args:
            starting: it is the start of the server, whose phases are counted, and not of the hub.
        """
        spawner = self._spawner
        context = self._tls_context()
        probe = url_path_join(url, spawner.server.base_url, "api") if spawner.server else url
        waiting = self._hub.waiting
        waiting.add(session.id)
        try:
            while not await answers(probe, context, certificate=session.certificate if context else ""):
                current = self._hub.registry.current(session.id)
                if current is None or current.is_ending:
                    raise await self.failure(session.id)
                await self._hub.registry.wait_for_change(session.id, POLL_INTERVAL + POLL_PER_START * len(waiting))
        except WrongCertificate as error:
            metrics.WRONG_CERTIFICATES.inc()
            spawner.log.error("Session %s of %s: another program answers on %s", session.id, session.user, url)
            try:
                await self._hub.reconciler.cancel(session.id, PORT_TAKEN)
            except CarmeError as failed:  # JupyterHub stops a server that does not start, which tries again
                spawner.log.error("Session %s cannot be ended now: %s", session.id, failed)
            raise ended_early(PORT_TAKEN, "") from error
        finally:
            waiting.discard(session.id)
        if starting:
            now = time.time()
            metrics.START_PHASE.labels("server").observe(max(0.0, now - session.started))
            traces.phase(session.id, "server", session.started, now)

    async def _with_end_reason(self, session: Session) -> Session | None:
        """Return a session whose server has ended, after waiting for Slurm's reason if a signal ended it."""
        deadline = time.monotonic() + REASON_TIMEOUT
        while session.server_exit > 128 and self._hub.registry.current(session.id) is not None:
            if time.monotonic() > deadline:
                break
            await self._hub.registry.wait_for_change(session.id, 1.0)
        return await self._hub.registry.get(session.id)

    def _tls_context(self) -> Any:
        spawner = self._spawner
        if not spawner.internal_ssl:
            return None
        settings = spawner.user.settings
        return _context(settings["internal_ssl_key"], settings["internal_ssl_cert"], settings["internal_ssl_ca"])

    async def failure(self, id: str) -> SpawnException:
        """Return why a session ended before its server answered, with the end of its log."""
        session = await self._hub.registry.get(id)
        if session is not None and session.server_ended and not session.cancel_wanted:
            session = await self._with_end_reason(session)
        why = (session.end_reason or session.cancel_reason) if session else "The session has ended."
        if session is not None and not why:
            mark = EndMark(session.server_exit, session.job_id)
            why = mark_sentence(mark, session.request.working_folder)
        if session is not None and session.server_exit == NOT_STAGED:
            why = await self._staging_reason(id) or why
        tail = ""
        if session is not None and session.job_id:
            try:
                tail = (await self._hub.client.log_tail(session.user, id)).strip()
            except CarmeError as error:
                self._spawner.log.warning("The log of session %s cannot be read: %s", id, error)
        is_user_fault = why == LAUNCH_CODES[HOME_FULL] or (session is not None and session.server_exit in USER_FAULTS)
        code = session.server_exit if session is not None else 0
        reason = f"exit-{code}" if code in LAUNCH_CODES else "session-ended"
        return ended_early(why, tail, 400 if is_user_fault else 500, reason)

    async def _staging_reason(self, id: str) -> str:
        """Return which file is not on the node, and why; "" where the node has not said so."""
        try:
            staging = await self._hub.stagings.get(id)
        except CarmeError:
            return ""
        report = staging.report if staging is not None and staging.state is StageState.FAILED else None
        return not_staged(report) if report is not None else ""


@lru_cache(maxsize=4)
def _context(key: str, certificate: str, authority: str) -> Any:
    """Return the hub's TLS context, cached: its files do not change while the hub runs."""
    return make_ssl_context(key, certificate, cafile=authority)
