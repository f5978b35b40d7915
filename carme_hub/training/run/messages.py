"""How a rank and its conductor speak: by small values at the run's rendezvous, as JSON.

Every rank writes its own number in these scopes, so that one that is missing is known by its number.
"""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rendezvous import Rendezvous

#: Scopes: a rank is there; how it goes on; how it ended; and what a conductor tells all of its ranks.
HELLO, BEAT, END, TOLD = "carme", "carme-beat", "carme-end", "carme-told"


#: The most bytes of an answer; what a conductor says is small.
LONGEST = 1 << 20
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")


class ConductorUnreachable(ConnectionError):
    """The conductor cannot be reached."""


class RendezvousClient:
    """A client of the rendezvous, for one rank.

    Args:
        address: with its secret (``10.0.0.1:4711/SECRET``), and port: as ``run.json`` has them.
        timeout: seconds for which one request may take.
    """

    def __init__(self, address: str, port: int, timeout: float = 10.0) -> None:
        self.host, _, secret = address.partition(f":{port}/")
        self.port, self._timeout = port, timeout
        self._base = f"/{secret}:{port}"

    def put(self, scope: str, key: object, said: dict[str, Any]) -> None:
        """Say something; ``ConductorUnreachable`` where nobody listens."""
        status, _ = self._ask("PUT", scope, key, json.dumps(said).encode())
        if status != 200:
            raise ConductorUnreachable(f"The conductor did not take {scope}/{key}: {status}.")

    def get(self, scope: str, key: object) -> dict[str, Any] | None:
        """Return what was said, None where nothing was; ``ConductorUnreachable`` as ``put``."""
        status, text = self._ask("GET", scope, key)
        if status != 200:
            return None
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:  # a run's port is anybody's once its conductor is gone
            raise ConductorUnreachable(
                f"Somebody else answers in the place of the conductor at {self.host}."
            ) from error

    def _ask(self, method: str, scope: str, key: object, text: bytes = b"") -> tuple[int, bytes]:
        """Ask once. By hand, since importing ``http.client`` takes a tenth of the time that a rank needs to begin."""
        head = f"{method} {self._base}/{scope}/{key} HTTP/1.0\r\nContent-Length: {len(text)}\r\n\r\n"
        try:
            with socket.create_connection((self.host, self.port), self._timeout) as link:
                link.sendall(head.encode() + text)
                answer = b""
                while len(answer) <= LONGEST and (piece := link.recv(65536)):
                    answer += piece
        except OSError as error:
            raise ConductorUnreachable(f"The conductor at {self.host} does not answer: {error}.") from error
        said, _, value = answer.partition(b"\r\n\r\n")
        words = said.split(None, 2)
        length = _LENGTH.search(said)
        if len(words) < 2 or not words[1].isdigit() or length is None or int(length[1]) != len(value):
            raise ConductorUnreachable(f"The conductor at {self.host} broke off.")
        return int(words[1]), value


def heard(rendezvous: Rendezvous, scope: str, key: object) -> dict[str, Any] | None:
    """Return what a rank said, for the conductor, which has the rendezvous; None where it said nothing."""
    text = rendezvous.get(scope, str(key))
    return None if text is None else dict(json.loads(text))
