"""An arbiter for jupyterhub-idle-culler: it leaves sessions to our rules, and asks our evidence on the others.

jupyterhub-idle-culler 2.0 or later takes it in its own configuration file (``--config``)::

    from carme_hub.activity.idle.culler import may_cull

    c.IdleCuller.cull_arbiter_hook = may_cull

Without it the culler knows when Jupyter last saw traffic, and no more. With it a server is culled that is idle for
longer than the culler's timeout by its own clock, for which the policy has no rule and no exemption, and in which the
hub knows that nothing is at work. Where the hub does not answer, or knows nothing of a server, nothing is culled. It
asks with the culler's own token and the scope ``read:servers``, which the culler needs anyhow.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

#: The hub's answers on which a server may be culled.
FREE = "free"
#: Seconds for the hub's answer.
TIMEOUT = 20.0
_log = logging.getLogger("carme_hub.culler")


async def may_cull(*, inactive: timedelta | None, inactive_limit: float, server: dict[str, Any], **_more: Any) -> bool:
    """Return whether a server may be culled: by the culler's clock, by our rules, and by what is at work in it."""
    if inactive is None or inactive.total_seconds() < inactive_limit:
        return False
    where = server_of(server)
    if where is None:
        return False
    found = await _ask(*where)
    if found.get("state") == FREE:
        return True
    _log.info("Not culling server %s: %s", "/".join(where), found.get("because") or "nothing is known of it")
    return False


def server_of(server: dict[str, Any]) -> tuple[str, str] | None:
    """Return the names of user and server of a model of JupyterHub's REST API; None where it has none.

    ``url`` is ``/hub/prefix/user/NAME/`` or ``…/user/NAME/SERVER/``, each name escaped; ``name`` is the server's.
    """
    name = str(server.get("name") or "")
    parts = str(server.get("url") or "").strip("/").split("/")
    at = len(parts) - (2 if name else 1)
    if at < 1 or parts[at - 1] != "user":
        return None
    return parts[at], name


async def _ask(user: str, server: str) -> dict[str, Any]:
    """Return what the hub says of a server; {} where it does not answer. ``user`` is escaped already."""
    base, token = os.environ.get("JUPYTERHUB_API_URL", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")
    url = f"{base}/carme/users/{user}/idle?server={quote(server, safe='')}"
    request = HTTPRequest(url, headers={"Authorization": f"token {token}"}, request_timeout=TIMEOUT)
    try:
        answer = await AsyncHTTPClient().fetch(request)
        found = json.loads(answer.body)
    except (HTTPClientError, OSError, ValueError) as error:
        _log.warning("Not culling server %s/%s: the hub does not say what is at work in it: %s", user, server, error)
        return {}
    return found if isinstance(found, dict) else {}
