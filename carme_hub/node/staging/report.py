# ruff: noqa: UP006, UP035, UP045
"""How far a session's copies are, said to the hub, with its answer: what the user has decided.

carme-stage loads this file (``carme-stage-report`` on a node) where the plan says how to report. It runs as the user.
"""

import contextlib
import http.client
import json
import ssl
from urllib.parse import urlsplit

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

#: Seconds for an answer; the most bytes of a report, below the 64 KiB that the hub takes.
ANSWER_SECONDS, LARGEST = 5, 60_000


def send(report: "Dict[str, Any]", found: "Dict[str, Any]") -> "Optional[Dict[str, Any]]":
    """Send progress to the hub and return its answer; None where it does not answer, which changes nothing here."""
    url = urlsplit(str(report.get("url", "")))
    headers = {"Authorization": "carme-nonce " + str(report.get("nonce", "")), "Content-Type": "application/json"}
    try:
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=report.get("ca") or None)
            if report.get("key"):
                context.load_cert_chain(report["cert"], report["key"])
            line = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=ANSWER_SECONDS, context=context)
        else:
            line = http.client.HTTPConnection(url.hostname or "", url.port, timeout=ANSWER_SECONDS)  # type: ignore[assignment]
        with contextlib.closing(line):
            line.request("POST", url.path, report_body(found), headers)
            answer = line.getresponse()
            body = answer.read(65536)
            value = json.loads(body) if answer.status == 200 and body else None
            return value if isinstance(value, dict) else None
    except (OSError, ValueError, http.client.HTTPException):
        return None


def report_body(found: "Dict[str, Any]") -> bytes:
    """Return the progress for the hub, with as many of the reasons as it takes (64 KiB)."""
    errors = list(found["errors"])
    while True:
        body = json.dumps({**found, "errors": errors}, ensure_ascii=False).encode("utf-8", "replace")
        if len(body) < LARGEST or not errors:
            return body
        errors.pop()
