"""Workaround for managed services with ``internal_ssl``: JupyterHub 6.1 connects to them with a server's TLS context.

Its ``start()`` passes the hub's own listening context to ``start_service``, which waits for the service with it; Python
refuses that ("Cannot create a client socket with a PROTOCOL_TLS_SERVER context"), the wait times out, and the hub ends.
Its regular check of services has no context at all. The authenticator replaces both methods on the running hub.
"""

from __future__ import annotations

import ssl
from typing import Any

from jupyterhub.objects import Server
from jupyterhub.utils import make_ssl_context


def use_client_tls_for_services(app: Any) -> None:
    """Make a hub with ``internal_ssl`` wait for its services, and check them, with a client's TLS context."""
    if not getattr(app, "internal_ssl", False):
        return
    start = app.start_service

    async def start_service(name: str, service: Any, _of_a_server: ssl.SSLContext | None = None) -> bool:
        return bool(await start(name, service))  # without this argument it makes a client's context

    async def check_services_health() -> None:
        context = make_ssl_context(app.internal_ssl_key, app.internal_ssl_cert, cafile=app.internal_ssl_ca)
        for name, service in list(app._service_map.items()):
            if service.url:
                try:
                    server = Server.from_orm(service.orm.server)
                    await server.wait_up(timeout=service.timeout, http=True, ssl_context=context)
                except TimeoutError:
                    app.log.warning("Cannot connect to service %s at %s", name, service.url)

    app.start_service = start_service
    app.check_services_health = check_services_health
