"""Connects a terminal and a shell in a rank: frames over TCP, after both have proved that they know a key.

The key comes by the run's own channel. A rank that connects after the terminal has ended may meet somebody else at its
port, and the terminal may be found by others: neither gets anything without the key. As all that ranks send each other,
the frames are not encrypted.

After the proof nothing here waits: what cannot be sent yet is kept, and each side stops reading for as long as too much
is kept. So no amount of input holds up the output, or the other way round.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import time
from hashlib import sha256

#: Kinds of frames: bytes of the terminal or the shell (none = the end of the terminal's input), the terminal's size as
#: rows and columns, and the status of the shell's end.
DATA, SIZE, END = b"d", b"s", b"e"
#: What the terminal asks for, as JSON: ``argv``, [] = the user's shell; ``size``, None = no terminal; ``term``.
START = b"a"
#: The most bytes of a frame, and of what is kept in one direction before its source is left alone.
MAX_FRAME, MAX_KEPT = 1 << 16, 1 << 18
#: Seconds for the whole proof, and after which a node that is gone is noticed.
PROOF_TIMEOUT, GONE_SECONDS = 10.0, 60
TERMINAL, RANK = b"terminal", b"rank"
_HEAD = struct.Struct("!cI")
_NONCE = 32


class LinkEnded(ConnectionError):
    """The other side is gone."""


class NotProved(LinkEnded):
    """The other side is not the one that was expected."""


class Link:
    """One side of the connection.

    Args:
        connection: is closed with this. key: that both sides know. side: ``TERMINAL`` or ``RANK``.

    Raises:
        NotProved: the other side does not know the key. LinkEnded: it is gone, or too slow.
    """

    def __init__(self, connection: socket.socket, key: bytes, side: bytes) -> None:
        self._connection = connection
        self._out, self._in = bytearray(), bytearray()
        until = time.monotonic() + PROOF_TIMEOUT
        other = RANK if side == TERMINAL else TERMINAL
        mine = os.urandom(_NONCE)
        try:
            connection.settimeout(PROOF_TIMEOUT)
            connection.sendall(mine)
            theirs = self._read_exactly(_NONCE, until)
            connection.sendall(_proof(key, side, mine, theirs))
            proof = self._read_exactly(sha256().digest_size, until)
        except LinkEnded:
            raise
        except OSError as error:
            raise LinkEnded(str(error)) from None
        if not hmac.compare_digest(proof, _proof(key, other, theirs, mine)):
            raise NotProved("The other side of the shell does not know its key.")
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_SECONDS // 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_SECONDS // 6)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when ``receive`` may have a frame."""
        return self._connection.fileno()

    @property
    def kept(self) -> int:
        """Return how many bytes could not be sent yet."""
        return len(self._out)

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send a frame, as far as that is possible now; ``LinkEnded``: the other side is gone."""
        self._out += _HEAD.pack(kind, len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send what is kept, as far as that is possible now; errors as ``send``."""
        try:
            while self._out:
                del self._out[: self._connection.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkEnded(str(error)) from None

    def finish(self, timeout: float = PROOF_TIMEOUT) -> None:
        """Send what is kept, and wait for that; errors as ``send``."""
        try:
            self._connection.settimeout(timeout)
            self._connection.sendall(self._out)
        except OSError as error:
            raise LinkEnded(str(error)) from None
        self._out.clear()

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return kind and data of the frames that have come; ``LinkEnded``: the other side is gone."""
        with contextlib.suppress(BlockingIOError):
            self._in += self._receive(MAX_FRAME)
        found = []
        while len(self._in) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._in)
            if size > MAX_FRAME:
                raise LinkEnded("A frame of the shell is too long.")
            end = _HEAD.size + size
            if len(self._in) < end:
                break
            found.append((kind, bytes(self._in[_HEAD.size : end])))
            del self._in[:end]
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self, size: int) -> bytes:
        try:
            piece = self._connection.recv(size)
        except BlockingIOError:
            raise
        except OSError as error:
            raise LinkEnded(str(error)) from None
        if not piece:
            raise LinkEnded("The other side of the shell has closed the connection.")
        return piece

    def _read_exactly(self, size: int, until: float) -> bytes:
        found = b""
        while len(found) < size:
            self._connection.settimeout(max(0.001, until - time.monotonic()))
            found += self._receive(size - len(found))
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
