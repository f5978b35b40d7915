"""Asks the server of a session to put it in order before its end (``carme_hub.training.server.orderly_end``).

One request with a token of JupyterHub that reaches this server alone, for some minutes, and is deleted after the
answer. With ``internal_ssl`` it is sent only to whoever shows the session's own certificate, as the probe of a start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from jupyterhub import orm
from jupyterhub.utils import make_ssl_context, url_path_join
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.activity.idle.order import Order, order_from_json
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.hub.probe import WrongCertificate, check_certificate, status_of

#: Path below a server's own, and seconds for the answer: runs, kernels and two commands may take their time.
PATH, ANSWER_SECONDS = "carme/end", 300.0
#: Bytes of an answer.
MOST_BYTES = 64 * 1024
NOTE = "To put the session in order before it is ended"
_NO_ANSWER = (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError)


async def put_in_order(
    spawner: Any, session: Session, key: str, log: logging.Logger, *, unless_at_work: bool = True
) -> Order | None:
    """Return what was done; None where the server does not answer, or knows nothing of it.

    Args:
        spawner: of the session; None = JupyterHub has none yet. key: a question with the same key is done once.
    """
    if spawner is None or not spawner.server:
        return None
    url = url_path_join(str(spawner.server.url), PATH)
    body = json.dumps({"key": key, "unless_at_work": unless_at_work}).encode()
    certificate = session.certificate if spawner.internal_ssl else ""
    try:
        token = _new_token(spawner)
        try:
            content = await _post(url, _context(spawner), certificate, token, body)
        finally:
            _delete_token(spawner, token)
        return order_from_json(json.loads(content))
    except (*_NO_ANSWER, WrongCertificate, ValueError, SQLAlchemyError) as error:
        said = str(error) or type(error).__name__
        log.warning("Session %s of %s is not put in order: %s", session.id, session.user, said)
        return None


def _new_token(spawner: Any) -> str:
    user = spawner.user
    scopes = [f"access:servers!server={user.name}/{spawner.name}"]
    lasts = timedelta(seconds=ANSWER_SECONDS + 60)
    return str(user.new_api_token(note=NOTE, scopes=scopes, expires_in=int(lasts.total_seconds())))


def _delete_token(spawner: Any, token: str) -> None:
    db = spawner.user.db
    try:
        found = orm.APIToken.find(db, token)
        if found is not None:
            db.delete(found)
            db.commit()
    except SQLAlchemyError:
        db.rollback()  # the hub's own session must not stay in a failed transaction; the token expires by itself


def _context(spawner: Any) -> ssl.SSLContext | None:
    if not spawner.internal_ssl:
        return None
    key, certificate, authority = (spawner.user.settings[f"internal_ssl_{name}"] for name in ("key", "cert", "ca"))
    context: ssl.SSLContext = make_ssl_context(key, certificate, cafile=authority)
    return context


async def _post(url: str, context: ssl.SSLContext | None, certificate: str, token: str, body: bytes) -> bytes:
    """Return the content of an answer with status 200.

    Raises:
        WrongCertificate, TimeoutError, OSError, EOFError: there is none. ValueError: it is another one.
    """
    parts = urlsplit(url)
    # HTTP/1.0: the answer comes in one piece, and ends with the connection.
    head = (
        f"POST {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAuthorization: token {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, line = await asyncio.open_connection(parts.hostname, parts.port, ssl=context, limit=MOST_BYTES)
        try:
            if certificate:
                check_certificate(line, certificate)
            line.write(head.encode("ascii") + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            content = await _content(reader)
        finally:
            line.transport.abort()
    if (status := status_of(answer)) != 200:
        raise ValueError(f"its server answers with status {status}")
    return content


async def _content(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while piece := await reader.read(MOST_BYTES):
        found += piece
        if len(found) > MOST_BYTES:
            raise ValueError("its server answers at length")
    return found
