"""Two hubs of one site on this machine: their configurations, the address of the active one, and their processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from rig.hub import Hub

CONFIG = """
c = get_config()
load_subconfig({base!r})
c.JupyterHub.db_url, c.JupyterHub.db_kwargs = {theirs!r}, {{}}
c.CarmeStore.url = {ours!r}
c.JupyterHub.hub_connect_url = "https://127.0.0.1:{address}"
c.CarmeStandby.when_active = ["/usr/bin/python3", "-c", "open({target!r}, 'w').write('{port}')"]
for service in c.JupyterHub.services:
    if "command" in service:
        service["command"] = [*service["command"][:-1], __file__]
"""


class ServiceAddress:
    """A TCP port that leads to the hub whose port is in a file, as an address that moves between hosts does.

    Connections to the former host end when it moves: the next packet comes to a host that knows nothing of them.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._end_old, daemon=True).start()

    def _end_old(self) -> None:
        before = self._target.read_text()
        with suppress(OSError):
            while True:
                time.sleep(0.2)
                if (now := self._target.read_text()) != before:
                    before = now
                    for each in list(self._open):
                        with suppress(OSError):
                            each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._server.accept()
                threading.Thread(target=self._forward, args=(here,), daemon=True).start()

    def _forward(self, here: socket.socket) -> None:
        with (
            suppress(OSError, ValueError),
            here,
            socket.create_connection(("127.0.0.1", int(self._target.read_text())), 5) as there,
        ):
            there.settimeout(None)
            self._open |= {here, there}
            back = threading.Thread(target=_pump, args=(there, here), daemon=True)
            back.start()
            _pump(here, there)
            back.join()
            self._open -= {here, there}

    def close(self) -> None:
        self._server.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class TwoHosts:
    """Both hosts; ``hub`` is the one behind the proxy, of which only the proxy runs."""

    def __init__(self, hub: Hub, folder: Path, ours: str, theirs: str) -> None:
        self.hub, self.demo, self.folder = hub, hub.demo, folder
        target = folder / "active"
        target.write_text("0")
        shutil.chown(target, self.demo.user)
        self.address = ServiceAddress(target)
        packages = Path(psycopg.__file__).parents[1]
        for found in packages.glob("psycopg*"):  # the sandbox's hub needs no PostgreSQL, and so has no driver
            shutil.copytree(found, folder / "packages" / found.name)
        self.ports = {"one": dict(self.demo.ports), "two": _other_ports(self.demo.ports)}
        facts = json.loads((self.demo.folder / "facts.json").read_text())
        for name, ports in self.ports.items():
            (folder / f"{name}.json").write_text(json.dumps({**facts, "ports": ports}))
            shutil.chown(folder / f"{name}.json", self.demo.user)
            (folder / f"{name}.json").chmod(0o600)
            values = {"ours": ours, "theirs": theirs, "address": self.address.port, "target": str(target)}
            text = CONFIG.format(base=str(self.demo.config_file), port=ports["hub"], **values)
            (folder / f"{name}.py").write_text(text)

    @property
    def processes(self) -> Any:
        return self.demo.sandbox.processes

    def log(self, name: str) -> str:
        return (self.demo.cluster.layout.log / f"{name}.log").read_text(errors="replace")

    def start(self, name: str) -> None:
        python, file = f"{self.demo.environment}/bin/python", str(self.folder / f"{name}.py")
        self.processes.stop(f"host-{name}")
        self.processes.start(
            f"host-{name}",
            [python, "-m", "carme_hub.cli", "standby", "-f", file, "--", python, "-m", "jupyterhub", "-f", file],
            log=self.demo.cluster.layout.log / f"{name}.log",
            env={
                **self.demo._environment(),
                **self.hub.environment,
                "CARME_SANDBOX_HUB": str(self.folder / f"{name}.json"),
                "PYTHONPATH": str(self.folder / "packages"),
            },
            user=self.demo.user,
            extra_groups=("shadow",) if os.geteuid() == 0 else (),
            cwd=self.demo.folder,
            umask=0o077,
        )

    def everything(self, name: str) -> list[int]:
        """Return what runs on a host, children last: ``carme-hub standby``, the hub, its services."""
        found = [self.processes.record(f"host-{name}").pid]
        for pid in found:
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        for name in self.ports:
            with suppress(Exception):
                self.signal(self.everything(name), signal.SIGCONT)
            self.processes.stop(f"host-{name}", within=25)
        self.address.close()


def _other_ports(ports: Any) -> dict[str, int]:
    """Return ports of a second host; the proxy is the same."""
    free = {}
    sockets = []
    for name in ports:
        sockets.append(socket.create_server(("127.0.0.1", 0)))
        free[name] = sockets[-1].getsockname()[1]
    for each in sockets:
        each.close()
    return {**free, "public": ports["public"], "proxy_api": ports["proxy_api"]}


@contextmanager
def two_hosts(hub: Hub, folder: Path, ours: str, theirs: str) -> Iterator[TwoHosts]:
    """Stop the sandbox's one hub, and yield two hosts that share its proxy."""
    hub.stop_all()
    hub.demo.sandbox.processes.stop("hub", within=20)
    hosts = TwoHosts(hub, folder, ours, theirs)
    try:
        yield hosts
    finally:
        hosts.close()
        hub.start()
