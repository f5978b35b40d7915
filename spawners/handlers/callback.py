"""The callbacks of a session's programs to the hub: the server's port at the start, and later the server's end.

``POST /hub/api/carme/sessions/<uuid>/port`` with ``{"port": 40123}`` and ``Authorization: carme-nonce <nonce>``, once,
from the allocated node. ``POST …/ended`` with ``{"exit": 1}`` and the same nonce: the server has ended, so its route
and its tokens are removed at once; the session stays open until its job is terminal.
Only the nonce counts here: no login, cookie or API token.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from jupyterhub.apihandlers.base import APIHandler
from tornado import web

from carme_hub import metrics
from carme_hub.address import client_address
from carme_hub.crash import crash_point
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import SlurmError, StoreError
from carme_hub.sessions.registry import CallbackRefused
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.hub.shared import HubContext, started_hub

CALLBACK = r"/api/carme/sessions/([0-9a-f-]{36})/port"
ENDED = r"/api/carme/sessions/([0-9a-f-]{36})/ended"
_SCHEME = "carme-nonce "
_LARGEST_BODY = 256


class NonceHandler(APIHandler):
    """The base of both callbacks: only the session's nonce counts."""

    def check_xsrf_cookie(self) -> None:
        """Skip the XSRF check, since cookies do not count here."""

    async def prepare(self) -> None:
        """Skip JupyterHub's authentication by cookies and tokens: only the nonce counts."""

    def shared_and_nonce(self) -> tuple[HubContext, str]:
        """Return the hub's context, and the nonce of the request."""
        hub = started_hub()
        if hub is None:
            raise web.HTTPError(503, "The hub is starting; try again.")
        header = self.request.headers.get("Authorization", "")
        if not header.startswith(_SCHEME):
            raise web.HTTPError(403, "The session's nonce is missing.")
        return hub, header.removeprefix(_SCHEME).strip()


class PortHandler(NonceHandler):
    """Accepts the port of a server that has just started."""

    async def post(self, id: str) -> None:
        """Check and store the port, and answer 204; the job's log shows a refusal."""
        hub, nonce = self.shared_and_nonce()
        session = hub.registry.current(id)
        if session is None:
            raise web.HTTPError(403, "No such session is waiting for its server.")
        port = _number(self.request.body, "port")
        # Not remote_ip, which a caller can set by X-Real-Ip.
        address = client_address(self.request, proxies=())
        try:
            node = await allocated_node(hub, session, address)
            await hub.registry.prove(id, nonce, port, node)
        except CallbackRefused as error:
            metrics.CALLBACKS_REFUSED.inc()
            hub.log.warning("Callback of session %s from %s refused: %s", id, address, error)
            raise web.HTTPError(403, error.message) from error
        except (SlurmError, StoreError) as error:
            raise web.HTTPError(503, "The hub cannot check this now; try again.") from error
        crash_point("proved")
        self.set_status(204)


class EndedHandler(NonceHandler):
    """Accepts the report that a session's server has ended."""

    async def post(self, id: str) -> None:
        """Store the end, revoke the tokens of the server and its visitors, and answer 204."""
        hub, nonce = self.shared_and_nonce()
        status = _number(self.request.body, "exit")
        if not 0 <= status <= 255:
            raise web.HTTPError(400, "An exit status is a number from 0 to 255.")
        try:
            session = await hub.registry.server_ended(id, nonce, status)
        except CallbackRefused as error:
            metrics.CALLBACKS_REFUSED.inc()
            hub.log.warning("The report that the server of session %s has ended is refused: %s", id, error)
            raise web.HTTPError(403, error.message) from error
        except StoreError as error:
            raise web.HTTPError(503, "The hub cannot write this now; try again.") from error
        hub.log.info("The server of session %s of %s has ended with status %s", id, session.user, status)
        hub.reconciler.trigger(id)
        await hub.revoke(session)
        self.set_status(204)


def _number(body: bytes, name: str) -> int:
    data = small_json(body, _LARGEST_BODY)
    if not isinstance(data, dict) or set(data) != {name} or type(data[name]) is not int:
        raise web.HTTPError(400, f'The body is {{"{name}": NUMBER}} and nothing else.')
    return int(data[name])


async def allocated_node(hub: HubContext, session: Session, address: str) -> str:
    """Return the name of the session's allocated node if the caller's address is that node's.

    Raises:
        CallbackRefused: the job does not run, or runs on another node.
        SlurmError: Slurm does not answer; the caller may try again.
    """
    job = hub.reconciler.verdict(session.id).job
    if job is None or job.phase is not Phase.ACTIVE or not job.nodes:
        snapshot = await hub.watcher.fresh()
        found = [j for j in snapshot.named(session.job_name, session.user) if j.phase is Phase.ACTIVE]
        if not found:
            raise CallbackRefused("Slurm does not say that this session's job runs")
        job = found[-1]
    node_address = _site_node_address(hub, session)
    for node in job.nodes:
        if node_address is not None and address in await _resolve(node_address(node)):
            return node
    for max_age in (3600, None):  # the node's address may have changed; a new query before the refusal
        addresses = {n.name: n.address or n.name for n in await hub.watcher.nodes(max_age=max_age)}
        for node in job.nodes:
            if address in await _resolve(addresses.get(node, node)):
                return node
    raise CallbackRefused("the call does not come from the session's node")


def _site_node_address(hub: HubContext, session: Session) -> Callable[[str], str] | None:
    """Return the site's ``node_address``, None if it is not set."""
    spawner = hub.spawner(session.id)
    return spawner.node_address if spawner is not None else None


async def _resolve(host: str) -> set[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    return {str(entry[4][0]) for entry in found}


#: Handlers that are added to JupyterHub's API.
HANDLERS = [(CALLBACK, PortHandler), (ENDED, EndedHandler)]
