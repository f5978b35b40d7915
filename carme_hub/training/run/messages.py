"""The messages between ranks and their conductor: small JSON values at the run's rendezvous.

Every rank writes under its own number in these scopes, so a missing rank is known by its number.
"""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rendezvous import Rendezvous

#: Scopes: a rank has started; its progress; its end; whether MPI has started in it; and values from the conductor to
#: all ranks.
HELLO, BEAT, END, MPI, BROADCAST = "carme", "carme-beat", "carme-end", "carme-mpi", "carme-told"

#: Files of the run's folder that rank 0 writes: what it displays beside text (rank/output/rich_output.py), and what its
#: code says of itself (``here.log_params``).
DISPLAYED, PARAMS = "display.jsonl", "params.json"
#: Folder with the profile of each rank (``--profile``, rank/profile/profiler.py).
PROFILES = "profile"
#: Folder with the use of CPU, memory and GPU of each rank over time (rank/usage.py).
USAGE = "usage"

#: Seconds between two heartbeats of a small run; all ranks of a large one send no more than a hundred a second.
INTERVAL, MAX_BEATS_PER_SECOND = 1.0, 100

#: torch's name of the process group that has all ranks, in what they say of their collectives.
EVERYBODY = "default_pg"

#: The most bytes of an answer; messages of a conductor are small.
MAX_ANSWER = 1 << 20
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")


def heartbeat_interval(ranks: int) -> float:
    """Return the seconds between two heartbeats of a rank in a run of this size."""
    return max(INTERVAL, ranks / MAX_BEATS_PER_SECOND)


class ConductorUnreachable(ConnectionError):
    """The conductor cannot be reached."""


class RendezvousClient:
    """A client of the rendezvous, for one rank.

    Args:
        address: with its secret (``10.0.0.1:4711/SECRET``), and port: as in ``run.json``.
        timeout: seconds for one request.
    """

    def __init__(self, address: str, port: int, timeout: float = 10.0) -> None:
        self.host, _, secret = address.partition(f":{port}/")
        self.port, self._timeout = port, timeout
        self._base = f"/{secret}:{port}"

    def put(self, scope: str, key: object, value: dict[str, Any]) -> dict[str, Any]:
        """Store a value and return what the conductor wants; ``ConductorUnreachable`` where it does not answer."""
        status, text = self._ask("PUT", scope, key, json.dumps(value).encode())
        if status != 200:
            raise ConductorUnreachable(f"The conductor did not accept {scope}/{key}: {status}.")
        return _document(text, self.host) if text else {}

    def get(self, scope: str, key: object) -> dict[str, Any] | None:
        """Return a value, or None where there is none; errors as ``put``."""
        status, text = self._ask("GET", scope, key)
        return _document(text, self.host) if status == 200 else None

    def _ask(self, method: str, scope: str, key: object, text: bytes = b"") -> tuple[int, bytes]:
        """Send one request. Importing ``http.client`` would take a tenth of a rank's start time, so it is not used."""
        head = f"{method} {self._base}/{scope}/{key} HTTP/1.0\r\nContent-Length: {len(text)}\r\n\r\n"
        try:
            with socket.create_connection((self.host, self.port), self._timeout) as link:
                link.sendall(head.encode() + text)
                answer = b""
                while len(answer) <= MAX_ANSWER and (piece := link.recv(65536)):
                    answer += piece
        except OSError as error:
            raise ConductorUnreachable(f"The conductor at {self.host} does not answer: {error}.") from error
        header, _, value = answer.partition(b"\r\n\r\n")
        words = header.split(None, 2)
        length = _LENGTH.search(header)
        if len(words) < 2 or not words[1].isdigit() or length is None or int(length[1]) != len(value):
            raise ConductorUnreachable(f"The conductor at {self.host} closed the connection early.")
        return int(words[1]), value


def _document(text: bytes, host: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:  # once the conductor is gone, anybody can take its port
        raise ConductorUnreachable(f"Another program answers in place of the conductor at {host}.") from error


def read_message(rendezvous: Rendezvous, scope: str, key: object) -> dict[str, Any] | None:
    """Return a message of a rank, or None; for the conductor, which has the rendezvous in its own process."""
    text = rendezvous.get(scope, str(key))
    return None if text is None else dict(json.loads(text))
