"""Booted systemd machines on a network of their own: systemd-nspawn, network namespaces, a bridge.

Nothing of it is in this machine's own network: the bridge is in a namespace too, and the namespaces' names begin with
``PREFIX``. Each machine runs in cgroups of its own below ours, where the kernel offers controllers, so that its slurmd
confines jobs. ``remove_all`` takes away everything that has these names, also what a killed run left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trees import mount, run, say

PREFIX = "carme-site-"
STATE = Path("/var/lib/carme-hub-site")
NAMESPACES = Path("/run/netns")
LAN = "lan"
#: Seconds in which a machine boots, and in which it shuts down.
BOOT, SHUT_DOWN = 90.0, 30.0


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the site for this process: two at once would take each other's names."""
    STATE.with_suffix(".lock").touch()
    with STATE.with_suffix(".lock").open("r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run uses the site; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_all() -> None:
    """End what runs in the site's namespaces, and remove namespaces, mounts, cgroups and files."""
    names = [path.name for path in NAMESPACES.glob(f"{PREFIX}*")] if NAMESPACES.is_dir() else []
    for name in names:
        for process in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    for name in names:
        wait_for(lambda name=name: not run("ip", "netns", "pids", name).split(), 20, f"the end of {name}")
        run("ip", "netns", "delete", name)
    for place in sorted(_mounted(STATE), reverse=True):
        run("umount", place)
    for folder in _cgroups():
        for group in sorted(folder.parent.glob(f"{PREFIX}*")):
            for inner, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # a process of it is still ending; the next run removes it
                    Path(inner).rmdir()
    shutil.rmtree(STATE, ignore_errors=True)


def _mounted(below: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [place for place in (line.split()[4] for line in lines) if place.startswith(f"{below}/")]


def _cgroups(name: str = "x") -> list[Path]:
    """Return the folders of a cgroup below ours, one for each hierarchy that has controllers."""
    mounts = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, kind = line.partition(" - ")
        if kind.startswith(("cgroup ", "cgroup2 ")):
            options = "" if kind.startswith("cgroup2 ") else kind.split()[-1].removeprefix("rw,")
            mounts[options] = Path(words.split()[4])
    ours = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    # Version 1, or both: those of version 2, and systemd's own, have no controllers, and are nspawn's.
    if len(ours) > 1:
        ours = [(number, which, path) for number, which, path in ours if which and not which.startswith("name=")]
    return [mounts[which] / path.lstrip("/") / f"{PREFIX}{name}" for _, which, path in ours if which in mounts]


def _new_cgroups(name: str) -> list[Path]:
    folders = _cgroups(name)
    for folder in folders:
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one of version 1, which then takes no process
            if (folder / file).exists() and (folder / "cgroup.clone_children").exists():
                (folder / file).write_text((folder.parent / file).read_text())
    return folders


@dataclass
class Network:
    """A bridge in a namespace; machines join it with an address."""

    def up(self) -> None:
        """Make the bridge."""
        run("ip", "netns", "add", f"{PREFIX}{LAN}")
        self._ip(LAN, "link", "add", "bridge", "type", "bridge")
        self._ip(LAN, "link", "set", "bridge", "up")

    def join(self, name: str, address: str) -> Path:
        """Make a namespace with one interface on the bridge, and return its file."""
        run("ip", "netns", "add", f"{PREFIX}{name}")
        ours = f"to-{name}"
        self._ip(LAN, "link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", f"{PREFIX}{name}")
        self._ip(LAN, "link", "set", ours, "master", "bridge", "up")
        self._ip(name, "address", "add", f"{address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            self._ip(name, "link", "set", interface, "up")
        return NAMESPACES / f"{PREFIX}{name}"

    @staticmethod
    def _ip(namespace: str, *argv: str) -> None:
        run("ip", "-n", f"{PREFIX}{namespace}", *argv)


@dataclass
class Machine:
    """One machine of the site.

    Attributes:
        role: "hub", "controller" or "nodes". name: its host name. namespace: the file of its network.
        layers: folders of its file system, the uppermost first. binds: folder or device here to path there; a path
            there that begins with "+" can be written.
        options: more of systemd-nspawn's.
    """

    role: str
    name: str
    namespace: Path
    layers: Sequence[Path]
    binds: Mapping[Path, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    leader: int = 0
    _nspawn: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        """The machine's file system."""
        return STATE / self.name / "root"

    def make(self) -> None:
        """Mount its file system; nothing runs yet."""
        mount(self.layers, STATE / self.name / "changes", STATE / self.name / "work", self.root)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")

    def write(self, path: str, text: str, mode: int = 0o644, owner: str = "") -> None:
        """Write a file."""
        file = self.root / path.lstrip("/")
        file.write_text(text)
        file.chmod(mode)
        if owner:
            self.run(f"chown {owner} {path}")

    def boot(self) -> None:
        """Boot it, and return when systemd is up."""
        argv = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe"]
        argv += ["--link-journal=no", "--resolv-conf=off", "--timezone=off", "--settings=no"]
        argv += [f"--directory={self.root}", f"--machine={self.name}", f"--network-namespace-path={self.namespace}"]
        for here, there in self.binds.items():
            argv.append(f"--bind={here}:{there[1:]}" if there.startswith("+") else f"--bind-ro={here}:{there}")
        argv += self.options
        groups = " ".join(shlex.quote(str(folder / "cgroup.procs")) for folder in _new_cgroups(self.name))
        enter = f'for group in {groups}; do echo $$ >"$group"; done; exec "$@"'
        with (STATE / self.name / "console.log").open("wb") as console:
            self._nspawn = subprocess.Popen(
                ["/bin/bash", "-c", enter, "bash", *argv],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self._is_up, BOOT, f"{self.name} to boot", self.log)
        # nspawn mounts the controllers of version 1 read-only. A machine may write its own, and sees no others.
        self.run("for place in $(findmnt -n -r -t cgroup -o TARGET); do mount -o remount,bind,rw $place; done")

    def _is_up(self) -> bool:
        process = self._nspawn
        assert process is not None
        assert process.poll() is None, f"{self.name} ended while it booted:\n{self.log()}"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    self.leader = int(child)
                    state = self.run("systemctl is-system-running || true").strip()
                    return state in ("running", "degraded")
        return False

    def log(self) -> str:
        """Return the end of what it printed on its console."""
        file = STATE / self.name / "console.log"
        return file.read_text(errors="replace")[-3000:] if file.exists() else ""

    def run(self, script: str, user: str = "root", limit: float = 120.0) -> str:
        """Run commands by bash, stop at the first that fails, and return what was printed.

        Raises:
            AssertionError: a command failed; with everything that it printed.
        """
        done = self.try_run(script, user, limit)
        assert done.returncode == 0, f"on {self.name}, as {user} ({done.returncode}):\n{script}\n{done.stdout[-6000:]}"
        return done.stdout

    def try_run(self, script: str, user: str = "root", limit: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run commands as ``run`` does, and return what became of them; output and errors are one text."""
        argv = ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        argv += ["--root", "--wd", "--", "/usr/bin/env", "-i", "LC_ALL=C.UTF-8", "HOME=/root", "TERM=dumb"]
        argv += ["DEBIAN_FRONTEND=noninteractive", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        argv += ["runuser", "-u", user, "--"] if user != "root" else []
        return subprocess.run(
            [*argv, "/bin/bash", "-euo", "pipefail", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )

    def shut_down(self) -> None:
        """Shut it down; kill it where it does not."""
        if self._nspawn is None:
            return
        self._nspawn.terminate()  # nspawn then tells systemd to power off
        try:
            self._nspawn.wait(SHUT_DOWN)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()


def wait_for(condition: Callable[[], bool], limit: float, what: str, explain: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition holds; fail with a description."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit:.0f} s for {what}\n{explain()}"
        time.sleep(0.2)
