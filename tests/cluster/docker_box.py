"""A separate Docker engine and a hub in front of it, with their own data and sockets, on the host network."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
from rig.hub import Hub, wait_for

from carme_hub.sandbox.images.build import build_full_image

IMAGE = "localhost/carme-full:1"
UID, GID = 1000, 100
CONFIG = """
import os
import carme_hub

c = get_config()
carme_hub.configure(c, state_folder="{folder}", slurm=False)
c.JupyterHub.authenticator_class = "dummy"  # its users need not be the system's
c.Authenticator.allow_all = True
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.auth_token = os.environ["CONFIGPROXY_AUTH_TOKEN"]

box = c.CarmeDockerSpawner
box.client_kwargs = {{"base_url": "unix://{socket}"}}
box.network_name = "host"  # this engine has no bridge
box.virtual = True
box.gpus = [{{"id": str(n), "type": "a100"}} for n in range(4)]
box.images = [
    {{"name": "full", "path": "{image}", "format": "ref"}},
    {{"name": "missing", "path": "localhost/not-there:1", "format": "ref"}},
]
box.profile_list = [{{
    "slug": "gpu", "display_name": "GPU",
    "gpus": {{"types": ["a100"], "min": 0, "max": 4, "default": 1}},
    "cpus": 1,
    "memory_gib": {{"min": 1, "max": 4, "default": 1}},
    "time_minutes": {{"min": 1, "max": 60, "default": 30}},
}}]
box.cpu_overcommit = 4
box.stop_grace = 3
box.look_interval = 1
box.poll_interval = 2

c.JupyterHub.services = [{{"name": "test", "api_token": os.environ["TEST_TOKEN"]}}]
c.JupyterHub.load_roles = [*c.JupyterHub.load_roles, {{
    "name": "test", "services": ["test"],
    "scopes": ["admin:users", "admin:servers", "access:servers", "tokens", "read:hub"],
}}]
"""


class DockerEngine:
    """Debian's dockerd in a separate folder, without its own network; sessions outlive it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        argv = ["dockerd", "--bridge=none", "--iptables=false", "--ip-forward=false", "--live-restore"]
        argv += [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        argv += ["--host", f"unix://{self.socket}"]
        self.socket.unlink(missing_ok=True)  # of an engine that was killed
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        wait_for(self._answers, 30, f"dockerd to answer: {self.folder}/dockerd.log")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "dockerd.log").read_text()[-2000:]
        if not self.socket.exists():
            return False
        with contextlib.closing(self.client()) as client:
            return bool(client.ping())

    def client(self) -> docker.APIClient:
        """Return a client of this engine."""
        return docker.APIClient(base_url=f"unix://{self.socket}", version="auto", timeout=300)

    def signal(self, number: int) -> None:
        """Send dockerd a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End dockerd as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> None:
        """End every container, the daemon, and what it left: processes, mounts and files."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            with contextlib.closing(self.client()) as client:
                for row in client.containers(all=True):
                    client.remove_container(row["Id"], force=True)
            self._process.terminate()
            self._process.wait(30)
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self._left(), 10, "the engine's processes to end")
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.folder}/"):
                subprocess.run(["umount", line.split()[1]], check=True)
        shutil.rmtree(self.folder)

    def _left(self) -> list[int]:
        """Return processes of this engine, containerd and its shims, by the folder on their command line."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(self.folder) in words and ("containerd" in words or "dockerd" in words):
                    found.append(int(entry.name))
        return found

    def load_image(self) -> None:
        """Build the image from the sandbox's full image, with the additions of Jupyter's own images."""
        tree, more = build_full_image(), self.folder / "more"
        folders = {"new/home/jovyan": (0o755, UID, GID), "new/tmp": (0o1777, 0, 0), "new/var/tmp": (0o1777, 0, 0)}
        for name, (mode, uid, gid) in folders.items():
            (more / name).mkdir(parents=True)
            (more / name).chmod(mode)
            os.chown(more / name, uid, gid)
        argv = ["tar", "-c", "--anchored", "--exclude=./tmp", "--exclude=./var/tmp", r"--transform=s,^\./new/,./,"]
        argv += ["-C", str(tree), ".", "-C", str(more), *(f"./{name}" for name in folders)]
        with contextlib.closing(self.client()) as client, subprocess.Popen(argv, stdout=subprocess.PIPE) as tar:
            name, _, tag = IMAGE.rpartition(":")
            path = "ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
            client.import_image_from_stream(tar.stdout, repository=name, tag=tag, changes=[path])
        assert tar.returncode == 0


class HubOnBox(Hub):
    """A hub with CarmeDockerSpawner, and its proxy, in front of an engine."""

    def __init__(self, folder: Path, engine: DockerEngine) -> None:
        self.folder, self.engine = folder, engine
        self.token = secrets.token_hex(16)
        self.secret = secrets.token_hex(16)
        self.ports = dict(zip(("public", "hub", "api"), _free_ports(3), strict=True))
        self.demo: Any = SimpleNamespace(ports=self.ports, log=folder / "hub.log")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.chmod(0o700)
        text = CONFIG.format(folder=folder, socket=engine.socket, image=IMAGE, **self.ports)
        (folder / "config.py").write_text(text)

    def start(self, **extra: str) -> None:
        """Start hub and proxy where they do not run, and wait until the hub answers."""
        bin = Path(sys.executable).parent
        environ = {
            "PATH": f"{bin}:/usr/bin:/bin:/usr/sbin:/sbin",
            "CONFIGPROXY_AUTH_TOKEN": self.secret,
            "TEST_TOKEN": self.token,
            "HUB_SECRET": self.secret,
            **extra,
        }
        commands = {
            "proxy": [str(bin / "carme-hub"), "proxy", f"--config={self.folder}/config.py"],
            "hub": [sys.executable, "-m", "jupyterhub", f"--config={self.folder}/config.py"],
        }
        for name, argv in commands.items():
            if name in self._processes and self._processes[name].poll() is None:
                continue
            with (self.folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(argv, env=environ, cwd=self.folder, stdout=log, stderr=log)
        wait_for(self._answers, 60, "the hub to answer")

    def _answers(self) -> bool:
        assert self._processes["hub"].poll() is None, self.log_text()[-3000:]
        try:
            return self.api("GET", "/info").status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """End the hub with KILL; the proxy continues."""
        self._processes["hub"].kill()
        self._processes["hub"].wait(10)

    def wait_dead(self, limit: float = 30.0) -> None:
        """Wait until the hub's process has ended."""
        self._processes["hub"].wait(limit)

    def stop(self) -> None:
        """End hub and proxy."""
        for name in ("hub", "proxy"):
            if name in self._processes:
                self._processes[name].terminate()
                self._processes[name].wait(30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def box_and_hub(folder: Path) -> Iterator[HubOnBox]:
    """Start engine and hub; remove everything at the end."""
    place = Path(f"/var/lib/carme-hub-docker-test-{os.getpid()}")  # a data root must not be on an overlay
    place.mkdir(mode=0o711)
    engine = DockerEngine(place)
    try:
        engine.start()
        engine.load_image()
        hub = HubOnBox(folder, engine)
        try:
            hub.start()
            yield hub
        finally:
            hub.stop()
    finally:
        engine.stop()


def containers(engine: DockerEngine) -> list[dict[str, Any]]:
    """Return all containers of the engine, running or not."""
    with contextlib.closing(engine.client()) as client:
        return list(client.containers(all=True))


def until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))
