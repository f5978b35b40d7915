"""What the certificate check of the proxy costs: throughput compared with configurable-http-proxy alone.

Runs as ``python benchmarks/proxy.py`` (about two minutes, needs only the proxy and Node); prints one JSON
object a line. Both proxies are processes of the same release with the same certificates and the same routes, to 150
sessions with a certificate and a TLS server each; short measurements of both alternate, each first in half of the
rounds. The value is the median of the rounds' ratios, because other work of the machine affects both alike. Where
servers, visitors and proxy share few processors, the ratio is that of all three together: so the proxy's own processor
time for each piece of work is given, too.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from certipy import Certipy
from hubs import free_ports
from measure import figure, load, log_progress

from carme_hub.spawners.hub.proxy import CERTIFICATE, proxy_environment
from carme_hub.spawners.hub.tls import AUTHORITY, certificate_of, issue

BIN = Path(sys.executable).parent
ENDS = Path(__file__).with_name("proxy_ends.mjs")
TOKEN = "of-the-proxy"
#: The lowest share of configurable-http-proxy's own throughput.
GOAL = 0.8
#: Rounds that do not count, because Node compiles code during them.
WARMUP_ROUNDS = 4
#: What is measured: its unit, and how many visitors do it at a time.
KINDS = {"pages": ("requests/s", 16), "files": ("MB/s", 4), "messages": ("messages/s", 16), "openings": ("1/s", 8)}


class Site:
    """An authority, certificates of many sessions, and their servers in a separate process."""

    def __init__(self, folder: Path, sessions: int) -> None:
        Certipy(store_dir=str(folder / "ssl")).create_ca(AUTHORITY)
        bundle = folder / "ssl" / AUTHORITY / f"{AUTHORITY}.crt"
        self.folder, self.bundle, self.certificates = folder, bundle, []
        (folder / "authority.crt").write_text(bundle.read_text())
        for number in range(sessions):
            texts = self.issue(str(number))
            self.certificates.append(certificate_of(texts))
        argv = [BIN / "node", ENDS, "servers", folder, str(sessions)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ports: list[int] = json.loads(self.process.stdout.readline())

    def issue(self, name: str) -> Mapping[str, str]:
        """Write a certificate and its key as NAME.crt and NAME.key."""
        names = ["IP:127.0.0.1"]
        texts = issue(str(self.folder / "ssl"), str(self.bundle), name, names, timedelta(hours=1))
        (self.folder / f"{name}.crt").write_text(texts["certfile"])
        (self.folder / f"{name}.key").write_text(texts["keyfile"])
        return texts


class Proxy:
    """configurable-http-proxy with a route to every session."""

    def __init__(self, site: Site, *, verifies: bool) -> None:
        self.port, self.api = free_ports(2)
        self.name = "verifying" if verifies else "plain"
        argv = [f"{BIN}/node", f"{BIN}/configurable-http-proxy", "--ip", "127.0.0.1", "--port", str(self.port)]
        argv += ["--api-ip", "127.0.0.1", "--api-port", str(self.api), "--log-level", "error"]
        argv += ["--client-ssl-key", f"{site.folder}/proxy.key", "--client-ssl-cert", f"{site.folder}/proxy.crt"]
        argv += ["--client-ssl-ca", str(site.bundle), "--client-ssl-request-cert", "--client-ssl-reject-unauthorized"]
        environ = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": TOKEN, "NODE_OPTIONS": ""}
        self.process = subprocess.Popen(argv, env=proxy_environment(environ) if verifies else environ)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self._ask("GET", "/api/routes", None)
                break
            time.sleep(0.05)
        for number, (port, certificate) in enumerate(zip(site.ports, site.certificates, strict=True)):
            target = f"https://127.0.0.1:{port}{CERTIFICATE}{certificate}"  # a plain proxy ignores the fragment
            assert self._ask("POST", f"/api/routes/user/{number}", {"target": target}) == 201

    def _ask(self, method: str, path: str, body: Any) -> int:
        line = http.client.HTTPConnection("127.0.0.1", self.api, timeout=10)
        try:
            line.request(method, path, json.dumps(body), {"Authorization": f"token {TOKEN}"})
            answer = line.getresponse()
            answer.read()
            return answer.status
        finally:
            line.close()

    def processor_time(self) -> float:
        """Return the seconds of processor time that its process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Visitors:
    """Visitors who do one kind of work through one proxy, on command."""

    def __init__(self, proxy: Proxy, kind: str, sessions: int, seconds: float) -> None:
        argv = [str(BIN / "node"), str(ENDS), "visit", str(proxy.port), kind, str(sessions)]
        argv += [str(KINDS[kind][1]), str(seconds)]
        self.kind, self.proxy = kind, proxy
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rates: list[float] = []
        self.amount = self.used = 0.0
        assert self._read_line() == "ready\n"

    def work(self, *, counts: bool) -> None:
        """Work for a while, and record the rate of work and the proxy's processor time."""
        before = self.proxy.processor_time()
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        found = json.loads(self._read_line())
        amount = found["bytes"] / 1e6 if self.kind == "files" else found["done"]
        if counts:
            self.used += self.proxy.processor_time() - before
            self.amount += amount
            self.rates.append(amount / found["seconds"])

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextlib.contextmanager
def terminating(*processes: subprocess.Popen[Any]) -> Iterator[None]:
    """End processes afterwards."""
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=10)


def main() -> int:
    """Measure, print the figures and return 0 where every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--sessions", type=int, default=150)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        log_progress(f"Certificates and servers of {args.sessions} sessions")
        site = Site(Path(folder), args.sessions)
        site.issue("proxy")
        with terminating(site.process):
            ours, plain = Proxy(site, verifies=True), Proxy(site, verifies=False)
            with terminating(ours.process, plain.process):
                for kind in args.kinds:
                    holds &= compare(kind, ours, plain, args)
    return 0 if holds else 1


def compare(kind: str, ours: Proxy, plain: Proxy, args: argparse.Namespace) -> bool:
    """Measure one kind of work with both proxies alternately, and print the figures."""
    pair = [Visitors(proxy, kind, args.sessions, args.seconds) for proxy in (ours, plain)]
    with terminating(*(each.process for each in pair)):
        for number in range(-WARMUP_ROUNDS, args.rounds):
            for visitors in pair if number % 2 else pair[::-1]:
                visitors.work(counts=number >= 0)
    unit, lines = KINDS[kind]
    ratios = sorted(a / b for a, b in zip(pair[0].rates, pair[1].rates, strict=True))
    each = "MB" if kind == "files" else kind
    log_progress(f"{kind}: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))
    holds = figure(
        f"{kind} through the proxy that compares certificates, of the plain one's",
        statistics.median(ratios),
        "ratio",
        peer=1.0,
        goal=None if kind == "openings" else GOAL,
        at_least=True,
        quartiles=[round(ratios[len(ratios) // 4], 2), round(ratios[-1 - len(ratios) // 4], 2)],
        rounds=args.rounds,
        sessions=args.sessions,
        visitors=lines,
        load=load(),
    )
    rates = [statistics.median(visitors.rates) for visitors in pair]
    figure(kind, rates[0], unit, peer=rates[1])
    costs = [1000 * visitors.used / visitors.amount for visitors in pair]
    figure(f"processor time of the proxy for 1000 {each}", costs[0], "s", peer=costs[1])
    return holds


if __name__ == "__main__":
    sys.exit(main())
