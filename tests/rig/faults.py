"""Faults for a sandbox: junk on a port, Slurm commands with odd answers, blocked ports. Each ends with its context."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox

from .hub import Hub, wait_for

COMMANDS = ("squeue", "sacct", "scancel", "scontrol", "sacctmgr", "sinfo", "sbatch", "srun")


class JunkServer:
    """Accepts every connection to a port and answers with meaningless bytes."""

    def __init__(self, port: int) -> None:
        self.connections = 0
        self._port = port
        self._listener = socket.socket()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wait_for(self._bind, 10, "the port to be free")  # slurmctld's helper process keeps it a moment longer
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown() first: close() alone does not wake accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _bind(self) -> bool:
        try:
            self._listener.bind(("127.0.0.1", self._port))
        except OSError:
            return False
        return True

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with client, contextlib.suppress(OSError):
                client.settimeout(1)
                client.recv(65536)
                # A plausible length, followed by random bytes; every third time only a close.
                if self.connections % 3:
                    client.sendall((400).to_bytes(4, "big") + secrets.token_bytes(400))


class DelayedSlurmrestd:
    """Delays slurmrestd's answers to submits until ``release`` is called; requests reach it at once."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._released = threading.Event()
        self._real = hub.cluster.rest_socket
        self._path = hub.cluster.state / "late-rest.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._submitted = threading.Event()
        self._facts = hub.demo.folder / "facts.json"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        shutil.chown(self._path, self._hub.demo.user)
        self._listener.listen(64)
        self._thread.start()
        self._use_socket(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._use_socket(self._real)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def release_answers(self) -> None:
        """Send the delayed answers to the hub, and all that follow."""
        self._released.set()

    def _use_socket(self, path: Path) -> None:
        facts = json.loads(self._facts.read_text())
        self._facts.write_text(json.dumps({**facts, "rest_url": f"unix://{path}"}))
        self._hub.restart()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        """Forward one connection, in both directions."""
        with client, socket.socket(socket.AF_UNIX) as real, contextlib.suppress(OSError):
            real.connect(str(self._real))
            asking = threading.Thread(target=self._forward_request, args=(client, real), daemon=True)
            asking.start()
            while data := real.recv(65536):
                if self._submitted.is_set():
                    self._submitted.clear()
                    self._released.wait(60)
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
            asking.join(10)

    def _forward_request(self, client: socket.socket, real: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if b"/job/submit" in data:
                    self._submitted.set()
                real.sendall(data)
            real.shutdown(socket.SHUT_WR)


#: The behaviour of a shimmed command, by mode. "$0.real" is the command itself.
_SHIM = """\
#!/bin/sh
# Replaces a Slurm command in a fault test; the file "mode" beside it selects its behaviour.
here=$(dirname "$0"); name=$(basename "$0"); mode=ok
[ -r "$here/$name.mode" ] && read -r mode < "$here/$name.mode"
echo x >> "$here/$name.calls"
case "$mode" in
  ok) exec "$here/$name.real" "$@" ;;
  empty) exit 0 ;;
  header) "$here/$name.real" "$@" | head -n 1; exit 0 ;;
  half) "$here/$name.real" "$@" > "$here/$name.out.$$"; size=$(wc -c < "$here/$name.out.$$")
        head -c $((size - 25)) "$here/$name.out.$$"; rm -f "$here/$name.out.$$"; exit 0 ;;
  error) echo "slurm_load_jobs error: The moon is in the wrong house" >&2; exit 1 ;;
  quiet-error) exit 1 ;;
  complains) echo "$name: error: Zero Bytes were transmitted or received" >&2; exit 0 ;;
  utf8) "$here/$name.real" "$@" | tr 'acde' '\\377\\376\\300\\301'; exit 0 ;;
  states) "$here/$name.real" "$@" | sed 's/RUNNING/LEVITATING/g; s/PENDING/PONDERING/g'; exit 0 ;;
  no-rows) "$here/$name.real" "$@" --name=there-is-no-such-job; exit 0 ;;
  huge) head -c 20000000 /dev/zero | tr '\\0' 'x'; exit 0 ;;
  killed) kill -9 $$ ;;
  slow) sleep 6; exec "$here/$name.real" "$@" ;;
  hangs) sleep 300 ;;
  deaf) exit 0 ;;
esac
"""


class Shims:
    """Slurm's commands for the hub, some of which misbehave on request. The sandbox's own stay unchanged."""

    def __init__(self, hub: Hub, *names: str) -> None:
        self._hub = hub
        self._names = names
        self.folder: Path = hub.cluster.state / "shims"
        self._bin = self.folder / "bin"
        self._facts = hub.demo.folder / "facts.json"

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._bin.mkdir(parents=True)
        for command in COMMANDS:
            real = self._hub.cluster.command(command)
            shimmed = command in self._names
            (self._bin / (f"{command}.real" if shimmed else command)).symlink_to(real)
            if shimmed:
                (self._bin / command).write_text(_SHIM)
                (self._bin / command).chmod(0o755)
                (self._bin / f"{command}.calls").touch()
        shutil.chown(self._bin, self._hub.demo.user)
        for file in self._bin.glob("*.calls"):
            shutil.chown(file, self._hub.demo.user)
        self._prefix(self.folder)
        self._hub.restart()
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self.behave(name, "ok")
        self._prefix(self._hub.cluster.bin.parent)
        self._hub.restart()

    def _prefix(self, folder: Path) -> None:
        facts = json.loads(self._facts.read_text())
        self._facts.write_text(json.dumps({**facts, "slurm_prefix": str(folder)}))

    def behave(self, name: str, mode: str) -> None:
        """Set the mode of a command from its next call on."""
        new = self._bin / f"{name}.mode.new"
        new.write_text(f"{mode}\n")
        new.rename(self._bin / f"{name}.mode")

    def calls(self, name: str) -> int:
        """Return how often the hub has called a command."""
        return (self._bin / f"{name}.calls").stat().st_size // 2

    def wait_calls(self, name: str, more: int, limit: float = 60.0) -> None:
        """Wait until the hub has called a command so many more times."""
        before = self.calls(name)
        wait_for(lambda: self.calls(name) >= before + more, limit, f"{more} more calls of {name}")


@contextlib.contextmanager
def cut(*ports: int, how: str = "DROP") -> Iterator[None]:
    """Block loopback ports: ``DROP`` loses packets as a broken network does, ``REJECT`` answers with a reset."""
    rules = []
    for port in ports:
        for way in ("--dport", "--sport"):
            rule = ["-i", "lo", "-p", "tcp", way, str(port), "-m", "comment", "--comment", "carme-fault-test"]
            rules.append([*rule, "-j", how, *(["--reject-with", "tcp-reset"] if how == "REJECT" else [])])
    done = 0
    try:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", "INPUT", *rule], check=True, capture_output=True)
            done += 1
        yield
    finally:
        for rule in rules[:done]:
            subprocess.run(["iptables", "-w", "-D", "INPUT", *rule], check=True, capture_output=True)


@contextlib.contextmanager
def daemon_down(cluster: Cluster, name: str) -> Iterator[None]:
    """Kill a daemon as a crash would, and start it again at the end."""
    cluster.kill(name)
    try:
        yield
    finally:
        Sandbox(cluster.state).restart(name)


@contextlib.contextmanager
def daemon_frozen(cluster: Cluster, name: str) -> Iterator[None]:
    """Freeze a daemon: the kernel accepts connections to it, and nothing answers."""
    cluster.freeze(name)
    try:
        yield
    finally:
        cluster.thaw(name)


@contextlib.contextmanager
def junk_in_place_of_the_controller(cluster: Cluster) -> Iterator[None]:
    """Let another server answer on slurmctld's port."""
    with daemon_down(cluster, "slurmctld"), JunkServer(cluster.ports.controller) as junk:
        yield
        assert junk.connections, "no connection reached the junk server"


def server_process(session: str) -> int:
    """Return the pid of a session's single-user server, 0 when there is none."""
    return _process_of(session, b"carme-singleuser")


def batch_script(session: str) -> int:
    """Return the pid of a session's batch script, which is also its supervisor, 0 when there is none."""
    return _process_of(session, b"/slurm_script")


def _process_of(session: str, words: bytes) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                if words not in line or b"bwrap" in line.split(b"\0")[0]:
                    continue
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"CARME_SESSION={session}".encode() in environ:
                return int(entry.name)
    return 0


def end_service(hub: Hub, name: str) -> None:
    """Kill one of the services that this hub runs, as a crash would."""
    module, ours = f"carme_hub.services.{name}".encode(), f"CARME_SANDBOX_HUB={hub.demo.folder / 'facts.json'}".encode()
    killed = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, environ = ((entry / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            if module in words and ours in environ:
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(entry.name)
    assert killed, f"no service {name} of this hub runs"


def server_token(session: str) -> str:
    """Return the API token of a session's server as a thief would get it: from its session folder."""
    pid = server_process(session)
    assert pid, f"session {session} has no server"
    environ = dict(word.split(b"=", 1) for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if word)
    data = json.loads((Path(environ[b"CARME_SESSION_FOLDER"].decode()) / "data.json").read_text())
    return str(data["singleuser"]["environ"]["JUPYTERHUB_API_TOKEN"])


def seconds_since(begun: float) -> float:
    """Return the seconds since a reading of the monotonic clock."""
    return time.monotonic() - begun
