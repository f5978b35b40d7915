"""What works now, in sentences for users: the hub, starts, Slurm, the calendar, accounting. The status page shows it.

No sentence names a user, a session, a node or an address: the site may show the page without a login.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyterhub.utils import make_ssl_context, url_path_join
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from carme_hub.spawners.hub.monitoring.readiness import TIMEOUT, Ask, Readiness
from carme_hub.spawners.hub.shared import HubContext

#: Key of the tornado settings with what asks the services.
SERVICES = "carme_service_status"
_SLOW = "Pages may fail or be slow: a database or the proxy does not answer."
_SILENT = "Slurm does not answer. What runs goes on, and is shown as it was last seen."
_WAIT = "New starts wait until Slurm answers."
_FAIL = "New starts may fail: a database or the proxy does not answer."
_STOPPED = "New starts are stopped, all or some of them. The form says why."
#: Parts that services have: the service, the field of its ``health`` that says that it works, and what to say if not.
_OF_SERVICES = {
    "calendar": ("reservations", "keeping", "Bookings stay as they are, and are not kept up to date in Slurm now."),
    "accounting": ("quotas", "settling", "What was used is charged later. New starts with GPUs may be refused."),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the page. ``problem``: what does not work, as a sentence; "" = it works."""

    name: str
    problem: str = ""


async def status_of(hub: HubContext | None, readiness: Readiness, services: Readiness) -> list[Part]:
    """Return what works now."""
    parts, others = await readiness.check(), await services.check()
    slow = any(said for name, said in parts.items() if name != "slurm")
    found = [Part("hub", _SLOW if slow else "")]
    if hub is not None:
        stopped = hub.administration is not None and bool(hub.administration.stops())
        silent = bool(parts.get("slurm"))
        found += [Part("starts", _STOPPED if stopped else _FAIL if slow else _WAIT if silent else "")]
        found += [Part("slurm", _SILENT if silent else "")]
    return [*found, *(Part(name, _OF_SERVICES[name][2] if said else "") for name, said in others.items())]


def services_of(app: Any) -> Mapping[str, Ask]:
    """Return what asks the services that the hub has."""
    return {
        name: _asker(app, service, field)
        for name, (service, field, _) in _OF_SERVICES.items()
        if service in app._service_map
    }


def _asker(app: Any, name: str, field: str) -> Ask:
    async def ask() -> str:
        service = app._service_map[name]
        tls = None
        if app.internal_ssl:
            tls = make_ssl_context(app.internal_ssl_key, app.internal_ssl_cert, cafile=app.internal_ssl_ca)
        url = url_path_join(service.url, service.prefix, "api/v1/health")
        request = HTTPRequest(url, ssl_options=tls, connect_timeout=TIMEOUT, request_timeout=TIMEOUT)
        client = AsyncHTTPClient(force_instance=True)
        try:
            answer = await client.fetch(request)
        finally:
            client.close()
        return "" if json.loads(answer.body).get(field) is True else "It does not do its work."

    return ask
