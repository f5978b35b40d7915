"""What a large upload and a large archive cost: memory of proxy and server, throughput, and what others wait meanwhile.

Runs as ``python benchmarks/files.py [--gib 10] [--folder FOLDER]`` (a few minutes; needs the proxy, Node, and so many
GiB in the folder); prints one JSON object a line. One file goes through `configurable-http-proxy` with our check of
certificates into a real Jupyter server with the file page, by tus in chunks of 32 MiB as the page sends them; then it
comes back as a tar. The peer of the throughput is a plain copy of the same bytes on the same disk. Memory is the most
that each process had (VmHWM) above what it had before. Meanwhile somebody else asks the same proxy for a small page of
another server ten times a second: p95, with and without the transfer.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hubs import free_ports
from measure import figure, load, log_progress, p95

from carme_hub.spawners.hub.proxy import proxy_environment

BIN = Path(sys.executable).parent
TOKEN, EXTENSION = "of-the-visitor", "carme_hub.training.server.extension"
CHUNK, MIB = 32 << 20, 1 << 20
#: The most MiB by which a process may grow, the slowest share of a plain copy, and the goal of speed.md for answers.
MEMORY_GOAL, WAIT_GOAL = 100.0, 300.0
BODY = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


def memory(pid: int, name: str = "VmHWM") -> float:
    """Return the most memory that a process has had, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(name + ":"))


def reset_peak(pid: int) -> float:
    """Let the kernel count the most memory anew (proc(5), clear_refs); return what it is now, in MiB."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid, "VmRSS")


def ask(port: int, method: str, path: str, headers: dict[str, str], body: Any = None, token: str = "") -> Any:
    """Send a request and return the answer, which is read."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        line.request(method, path, body, {"Authorization": f"token {token or TOKEN}", **headers})
        answer = line.getresponse()
        answer.read()
        return answer
    finally:
        line.close()


def wait_for(what: Any, within: float = 60.0) -> None:
    """Wait until a question is answered."""
    end = time.monotonic() + within
    while True:
        with contextlib.suppress(OSError):
            if what():
                return
        if time.monotonic() > end:
            raise SystemExit("A server does not start")
        time.sleep(0.1)


@contextlib.contextmanager
def running(argv: list[str], environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and end it."""
    with log.open("wb") as file, subprocess.Popen(argv, env=environ, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


class Visitor(threading.Thread):
    """Asks for a small page ten times a second, and notes how long each answer took, in ms."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self.port, self.path, self.waits, self.over = port, path, [], threading.Event()

    def run(self) -> None:
        """Ask until it is over."""
        while not self.over.wait(0.1):
            began = time.monotonic()
            assert ask(self.port, "GET", self.path, {}).status == 200
            self.waits.append(1000 * (time.monotonic() - began))

    def end(self) -> float | None:
        """Return the p95."""
        self.over.set()
        self.join()
        return p95(self.waits)


def jupyter(folder: Path, port: int, base: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a Jupyter server with the file page."""
    argv = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--port={port}", "--allow-root"]
    argv += [f"--ServerApp.jpserver_extensions={{'{EXTENSION}': True}}", f"--IdentityProvider.token={TOKEN}"]
    argv += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}", f"--ServerApp.base_url={base}"]
    argv += ["--ServerApp.allow_remote_access=True"]
    environ = {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN"):
        environ.pop(name, None)
    return argv, environ


def upload(port: int, folder: Path, size: int) -> float:
    """Upload so many bytes by tus; return MB/s."""
    coded = ",".join(
        f"{name} {base64.b64encode(value.encode()).decode()}"
        for name, value in (("filename", "big"), ("folder", str(folder)))
    )
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(size), "Upload-Metadata": coded}
    where = ask(port, "POST", "/user/a/carme/uploads", headers).getheader("Location")
    chunk, began = os.urandom(CHUNK), time.monotonic()
    for offset in range(0, size, CHUNK):
        body = chunk[: min(CHUNK, size - offset)]
        answer = ask(port, "PATCH", where, {**BODY, "Upload-Offset": str(offset)}, body)
        assert answer.status == 204, answer.status
    return size / 1e6 / (time.monotonic() - began)


def download(port: int, folder: Path) -> tuple[float, int]:
    """Download a folder as a tar; return MB/s and its bytes."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began, count = time.monotonic(), 0
    path = f"/user/a/carme/files/archive?folder={folder}&format=tar"
    line.request("GET", path, headers={"Authorization": f"token {TOKEN}"})
    answer = line.getresponse()
    assert answer.status == 200
    while piece := answer.read(MIB):
        count += len(piece)
    line.close()
    return count / 1e6 / (time.monotonic() - began), count


def main() -> int:
    """Measure, print the figures and return 0 where every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--folder", help="where the file lies for a while; the default is that of temporary files")
    args = parser.parse_args()
    size, holds = int(args.gib * (1 << 30)), True
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        (folder / "target").mkdir()
        (folder / "other").mkdir()
        ports = free_ports(4)
        one, other = jupyter(folder, ports[0], "/user/a/"), jupyter(folder / "other", ports[1], "/user/b/")
        argv = [f"{BIN}/node", f"{BIN}/configurable-http-proxy", "--ip", "127.0.0.1", "--port", str(ports[2])]
        argv += ["--api-ip", "127.0.0.1", "--api-port", str(ports[3]), "--log-level", "error"]
        environ = proxy_environment({**os.environ, "CONFIGPROXY_AUTH_TOKEN": TOKEN, "NODE_OPTIONS": ""})
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(running(*one, folder / "one.log"))
            stack.enter_context(running(*other, folder / "other.log"))
            proxy = stack.enter_context(running(argv, environ, folder / "proxy.log"))
            for port, base in ((ports[0], "/user/a"), (ports[1], "/user/b")):
                wait_for(lambda port=port, base=base: ask(port, "GET", f"{base}/api/status", {}).status == 200)
                target = json.dumps({"target": f"http://127.0.0.1:{port}"})
                wait_for(
                    lambda target=target, base=base: (
                        ask(ports[3], "POST", f"/api/routes{base}", {}, target).status == 201
                    )
                )
            for turn in ("alone", "upload", "download"):
                holds &= measure(turn, ports[2], folder, size, server.pid, proxy.pid)
    return 0 if holds else 1


def measure(turn: str, port: int, folder: Path, size: int, server: int, proxy: int) -> bool:
    """Do one thing, and print what it cost."""
    before = {"server": reset_peak(server), "proxy": reset_peak(proxy)}
    visitor = Visitor(port, "/user/b/api/status")
    visitor.start()
    log_progress(turn)
    target, rate, peer = folder / "target", 0.0, None
    if turn == "alone":
        time.sleep(10)
    elif turn == "upload":
        rate = upload(port, target, size)
        assert (target / "big").stat().st_size == size
    else:
        rate, count = download(port, target)
        assert count > size
    holds = figure(f"answers to others, {turn}, p95", visitor.end(), "ms", goal=WAIT_GOAL, load=load())
    if turn == "alone":
        return holds
    for name, pid in (("server", server), ("proxy", proxy)):
        grown = memory(pid) - before[name]
        holds &= figure(f"memory of the {name}, {turn}", grown, "MiB", goal=MEMORY_GOAL, bytes=size)
    if turn == "upload":
        began = time.monotonic()
        subprocess.run(["cp", target / "big", folder / "copy"], check=True)
        os.sync()
        peer = size / 1e6 / (time.monotonic() - began)
        (folder / "copy").unlink()
    figure(turn, rate, "MB/s", peer=peer)
    return holds


if __name__ == "__main__":
    sys.exit(main())
