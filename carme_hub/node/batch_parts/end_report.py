# ruff: noqa: UP006, UP035
"""Tells the hub that the server of a session has ended, so that the proxy removes its route.

The batch script runs this text from the data document. A hub that does not answer learns the end from Slurm later, so
clean-up does not wait long for it.
"""

import contextlib
import http.client
import json
import ssl
import time
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

HUB_TRIES, HUB_SECONDS, HUB_PAUSE = 2, 1.0, 0.5


def tell(own: "Dict[str, Any]", status: int, say: "Callable[[str], None]") -> None:
    """Send the exit status; ``own`` is the document's part of the server, ``say`` writes to the job's log."""

    def connection() -> "Any":
        if url.scheme != "https":
            return http.client.HTTPConnection(url.hostname or "", url.port, timeout=HUB_SECONDS)
        context = ssl.create_default_context(cafile=environ.get("JUPYTERHUB_SSL_CLIENT_CA") or None)
        if environ.get("JUPYTERHUB_SSL_KEYFILE"):
            context.load_cert_chain(environ["JUPYTERHUB_SSL_CERTFILE"], environ["JUPYTERHUB_SSL_KEYFILE"])
        return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=HUB_SECONDS, context=context)

    try:
        environ, url = own["environ"], urlsplit(own["callback"])
        path = url.path.rpartition("/")[0] + "/ended"
        headers = {"Authorization": "carme-nonce " + own["nonce"], "Content-Type": "application/json"}
    except (KeyError, TypeError, AttributeError):
        say("the hub cannot be informed of the end: the data document has no callback")
        return
    for left in range(HUB_TRIES)[::-1]:
        try:
            with contextlib.closing(connection()) as line:
                line.request("POST", path, json.dumps({"exit": status}), headers)
                if line.getresponse().status < 500:
                    return
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not left:
                say(f"the hub was not informed of the end: {error}")
        time.sleep(HUB_PAUSE if left else 0)
