"""Requests of a service to the hub's REST API, with the service's own token."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jupyterhub.utils import make_ssl_context, url_path_join
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from carme_hub.logs import REQUEST_ID, log_fields


async def ask_hub(
    path: str, query: Mapping[str, object], *, accept: str = "application/json", timeout: float = 20.0
) -> dict[str, Any]:
    """Return the hub's JSON answer to a GET; raise for an error status and when the hub does not answer."""
    return await _send(f"{path}?{urlencode(query)}", timeout, headers={"Accept": accept})


async def tell_hub(path: str, body: Mapping[str, Any], *, timeout: float = 20.0) -> dict[str, Any]:
    """Return the hub's JSON answer to a POST; raises as ``ask_hub`` does."""
    headers = {"Content-Type": "application/json"}
    return await _send(path, timeout, method="POST", body=json.dumps(body), headers=headers)


async def _send(path: str, timeout: float, *, headers: Mapping[str, str], **more: Any) -> dict[str, Any]:
    sent = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}", **headers}
    if "request" in log_fields():
        sent[REQUEST_ID] = log_fields()["request"]
    times: dict[str, Any] = {"connect_timeout": timeout, "request_timeout": timeout}
    url = url_path_join(os.environ["JUPYTERHUB_API_URL"], path)
    request = HTTPRequest(url, headers=sent, ssl_options=_client_tls(), **times, **more)
    answer = await AsyncHTTPClient(force_instance=True).fetch(request)
    return dict(json.loads(answer.body))


async def stop_server(user: str, name: str, *, timeout: float = 20.0) -> None:
    """Have the hub stop a user's server; raise for an error status and when the hub does not answer.

    It needs the scope ``delete:servers``. That there is no such server any more is no error.
    """
    server = f"servers/{quote(name, safe='')}" if name else "server"
    url = url_path_join(os.environ["JUPYTERHUB_API_URL"], "users", quote(user, safe=""), server)
    headers = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
    request = HTTPRequest(
        url,
        method="DELETE",
        headers=headers,
        ssl_options=_client_tls(),
        connect_timeout=timeout,
        request_timeout=timeout,
    )
    answer = await AsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)
    if answer.code not in (202, 204, 404):
        answer.rethrow()
        raise HTTPError(answer.code)


def _client_tls() -> ssl.SSLContext | None:
    names = ("JUPYTERHUB_SSL_KEYFILE", "JUPYTERHUB_SSL_CERTFILE", "JUPYTERHUB_SSL_CLIENT_CA")
    key, certificate, authority = (os.environ.get(name, "") for name in names)
    return _context(key, certificate, authority, Path(certificate).stat().st_mtime_ns) if key else None


@lru_cache(maxsize=1)
def _context(key: str, certificate: str, authority: str, _written: int) -> ssl.SSLContext:
    """Return a client's context; it is made once for each certificate: it reads all authorities of the system."""
    context: ssl.SSLContext = make_ssl_context(key, certificate, cafile=authority)
    return context
