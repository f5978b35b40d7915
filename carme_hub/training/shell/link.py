"""Connects a terminal and a shell in a rank: frames over TCP, after both have proved that they know a key.

The key comes by the run's own channel. A rank that connects after the terminal has ended may meet somebody else at its
port, and the terminal may be found by others: neither gets anything without the key. As all that ranks send each other,
the frames are not encrypted.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from hashlib import sha256

#: Kinds of frames: bytes of the terminal or the shell (none = the end of the terminal's input), the terminal's size as
#: rows and columns, and the status of the shell's end.
DATA, SIZE, END = b"d", b"s", b"e"
#: What the terminal asks for, as JSON: ``argv``, [] = the user's shell; ``size``, None = no terminal; ``term``.
START = b"a"
#: The most bytes of a frame, and the seconds for the other side to prove itself.
MAX_FRAME, PROOF_TIMEOUT = 1 << 16, 10.0
TERMINAL, RANK = b"terminal", b"rank"
_HEAD = struct.Struct("!cI")
_NONCE = 32


class NotProved(ConnectionError):
    """The other side is not the one that was expected."""


class Link:
    """One side of the connection.

    Args:
        connection: is closed with this. key: that both sides know. side: ``TERMINAL`` or ``RANK``.

    Raises:
        NotProved: the other side does not know the key. OSError: it is gone, or silent.
    """

    def __init__(self, connection: socket.socket, key: bytes, side: bytes) -> None:
        self._connection = connection
        connection.settimeout(PROOF_TIMEOUT)
        other = RANK if side == TERMINAL else TERMINAL
        mine = os.urandom(_NONCE)
        connection.sendall(mine)
        theirs = self._read(_NONCE)
        connection.sendall(_proof(key, side, mine, theirs))
        if not hmac.compare_digest(self._read(sha256().digest_size), _proof(key, other, theirs, mine)):
            raise NotProved("The other side of the shell does not know its key.")
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when ``receive`` has a frame, or its beginning."""
        return self._connection.fileno()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send a frame; ``OSError``: the other side is gone."""
        self._connection.sendall(_HEAD.pack(kind, len(data)) + data)

    def receive(self) -> tuple[bytes, bytes]:
        """Return kind and data of the next frame; ``OSError``: the other side is gone."""
        kind, size = _HEAD.unpack(self._read(_HEAD.size))
        if size > MAX_FRAME:
            raise ConnectionError("A frame of the shell is too long.")
        return kind, self._read(size)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._connection.recv(size - len(found))
            if not piece:
                raise ConnectionError("The other side of the shell has closed the connection.")
            found += piece
        return found


def pack_size(rows: int, columns: int) -> bytes:
    """Return the data of a ``SIZE`` frame."""
    return struct.pack("!HH", rows, columns)


def unpack_size(data: bytes) -> tuple[int, int]:
    """Return rows and columns."""
    rows, columns = struct.unpack("!HH", data)
    return rows, columns


def _proof(key: bytes, side: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.digest(key, side + own + other, sha256)
