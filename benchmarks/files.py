"""What a large upload and a large archive cost: memory of proxy and server, throughput, and what others wait meanwhile.

Runs as ``python benchmarks/files.py [--gib 10] [--folder FOLDER]`` (a few minutes; needs the proxy, Node, and so many
GiB in the folder); prints one JSON object a line. One file goes through `configurable-http-proxy` with our check of
certificates into a real Jupyter server with the file page, by tus in chunks of 32 MiB as the page sends them; then it
comes back as a tar. The peer of the throughput is a plain copy of the same bytes on the same disk. Memory is the most
that each process had (VmHWM) above what it had before; whether it goes on growing is the most of the transfer's second
half above that of the first. Meanwhile somebody else, in a process of its own, asks the same proxy for a small page of
another server ten times a second: p95, with and without the transfer. ``--mbps N`` reads and sends no faster than a
line of so many megabits a second, as visitors have.
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
#: The most MiB by which a process may grow, in all and in the second half; the goal of speed.md for answers, in ms.
MEMORY_GOAL, LATER_GOAL, WAIT_GOAL = 100.0, 16.0, 300.0
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


class Visitor:
    """Asks for a small page ten times a second, in a process of its own: this one is busy with the transfer."""

    def __init__(self, port: int, path: str) -> None:
        argv = [sys.executable, __file__, "--visit", str(port), path]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def end(self) -> float | None:
        """Return the p95, in ms."""
        out, _ = self.process.communicate()
        return p95(json.loads(out))


def visit(port: int, path: str) -> int:
    """Ask until the standard input is closed, and print how long each answer took, in ms."""
    waits, over = [], threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.wait(0.1):
        began = time.monotonic()
        assert ask(port, "GET", path, {}).status == 200
        waits.append(1000 * (time.monotonic() - began))
    print(json.dumps(waits))
    return 0


class Growth(threading.Thread):
    """Notes once a second what memory a process has, in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.seen, self.over = pid, [], threading.Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(1.0):
            self.seen.append(memory(self.pid, "VmRSS"))

    def later(self) -> float | None:
        """Return the most of the second half above the most of the first."""
        self.over.set()
        self.join()
        half = len(self.seen) // 2
        return max(self.seen[half:]) - max(self.seen[:half]) if half else None


class Line:
    """A line of so many megabits a second; 0 = as fast as it goes."""

    def __init__(self, mbps: float) -> None:
        self.bytes_a_second, self.began, self.count = mbps * 125_000, time.monotonic(), 0

    def passed(self, count: int) -> None:
        """Wait until so many more bytes would have passed."""
        self.count += count
        if self.bytes_a_second:
            time.sleep(max(0.0, self.began + self.count / self.bytes_a_second - time.monotonic()))


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


def upload(port: int, folder: Path, size: int, mbps: float) -> float:
    """Upload so many bytes by tus; return MB/s."""
    coded = ",".join(
        f"{name} {base64.b64encode(value.encode()).decode()}"
        for name, value in (("filename", "big"), ("folder", str(folder)))
    )
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(size), "Upload-Metadata": coded}
    where = ask(port, "POST", "/user/a/carme/uploads", headers).getheader("Location")
    chunk, began, line = os.urandom(CHUNK), time.monotonic(), Line(mbps)

    def pieces(body: bytes) -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 16):
            yield (piece := body[start : start + (1 << 16)])
            line.passed(len(piece))

    for offset in range(0, size, CHUNK):
        body = chunk[: min(CHUNK, size - offset)]
        head = {**BODY, "Upload-Offset": str(offset), "Content-Length": str(len(body))}
        answer = ask(port, "PATCH", where, head, pieces(body) if mbps else body)
        assert answer.status == 204, answer.status
    return size / 1e6 / (time.monotonic() - began)


def download(port: int, folder: Path, mbps: float) -> tuple[float, int]:
    """Download a folder as a tar; return MB/s and its bytes."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began, count = time.monotonic(), 0
    path = f"/user/a/carme/files/archive?folder={folder}&format=tar"
    line.request("GET", path, headers={"Authorization": f"token {TOKEN}"})
    answer = line.getresponse()
    assert answer.status == 200
    limit = Line(mbps)
    while piece := answer.read(MIB if not mbps else 1 << 16):
        count += len(piece)
        limit.passed(len(piece))
    line.close()
    return count / 1e6 / (time.monotonic() - began), count


def main() -> int:
    """Measure, print the figures and return 0 where every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--folder", help="where the file lies for a while; the default is that of temporary files")
    parser.add_argument("--mbps", type=float, default=0.0, help="the line of who moves the file; 0 = no limit")
    parser.add_argument("--visit", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.visit:
        return visit(int(args.visit[0]), args.visit[1])
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
                holds &= measure(turn, ports[2], folder, size, args.mbps, {"server": server.pid, "proxy": proxy.pid})
    return 0 if holds else 1


def measure(turn: str, port: int, folder: Path, size: int, mbps: float, pids: dict[str, int]) -> bool:
    """Do one thing, and print what it cost."""
    before = {name: reset_peak(pid) for name, pid in pids.items()}
    growth = {name: Growth(pid) for name, pid in pids.items()}
    visitor = Visitor(port, "/user/b/api/status")
    for each in growth.values():
        each.start()
    log_progress(turn)
    target, rate, peer = folder / "target", 0.0, None
    if turn == "alone":
        time.sleep(10)
    elif turn == "upload":
        rate = upload(port, target, size, mbps)
        assert (target / "big").stat().st_size == size
    else:
        rate, count = download(port, target, mbps)
        assert count > size
    holds = figure(f"answers to others, {turn}, p95", visitor.end(), "ms", goal=WAIT_GOAL, load=load())
    later = {name: each.later() for name, each in growth.items()}
    if turn == "alone":
        return holds
    for name, pid in pids.items():
        grown, what = memory(pid) - before[name], f"memory of the {name}, {turn}"
        holds &= figure(what, grown, "MiB", goal=MEMORY_GOAL, bytes=size)
        holds &= figure(f"{what}, second half above the first", later[name], "MiB", goal=LATER_GOAL)
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
