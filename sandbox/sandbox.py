"""Start, stop and remove a sandbox. ``up`` can be repeated and repairs; ``down`` ends only what ``up`` started."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox import people, privilege
from carme_hub.sandbox.layout import Layout, default_state
from carme_hub.sandbox.processes import Processes
from carme_hub.sandbox.slurm import hostname, virtual_driver
from carme_hub.sandbox.slurm.associations import write_associations
from carme_hub.sandbox.slurm.cluster import Cluster, as_document, passwords_in
from carme_hub.sandbox.slurm.daemons import PACKAGED, ROOTLESS, Daemon, daemons, log_of, node_states
from carme_hub.sandbox.slurm.files import Writer
from carme_hub.sandbox.slurm.hardware import VirtualNode, make_devices, virtual_nodes
from carme_hub.sandbox.slurm.jobs import end_jobs, end_processes
from carme_hub.sandbox.slurm.ports import Ports, free_block, is_free
from carme_hub.sandbox.slurm.settings import HUB_MESSAGE_TIMEOUT, Settings
from carme_hub.sandbox.status import NodeStatus, ProcessStatus, Status

Progress = Callable[[str], None]

_GOOD_NODE = re.compile(r"(idle|mixed|allocated|completing|reserved|maint|planned)[+#~-]*", re.ASCII)


def _no_progress(line: str) -> None:
    """Print nothing."""


class Sandbox:
    """One sandbox, identified by its state folder.

    Args:
        state: the state folder; None: the default one of this user.
        nodes: number of virtual nodes; None: as many as it has, or 4.
        slurm_prefix: another Slurm than the machine's own, such as one that ``build-slurm`` made.
    """

    def __init__(self, state: Path | None = None, nodes: int | None = None, slurm_prefix: Path | None = None) -> None:
        self.layout = Layout.at(state or default_state())
        self._wanted_nodes = nodes
        self._wanted_prefix = slurm_prefix
        self.processes = Processes(self.layout.processes)

    # -- public --------------------------------------------------------------------------------------------------

    def up(self, progress: Progress = _no_progress) -> Cluster:
        """Start everything that does not run, and return the cluster."""
        started = time.monotonic()
        with self._lock(make=True):
            prefix, nodes = self._choose_release_and_nodes()
            if self._rootless() is False:
                privilege.check_parents(self.layout.state)
            cluster = self._prepare(prefix, nodes, progress)
            self._start_missing(cluster, progress)
            self._resume_nodes(cluster)
            progress(f"up: {len(nodes)} virtual nodes after {time.monotonic() - started:.1f} s")
            return cluster

    def down(self, progress: Progress = _no_progress) -> None:
        """End what this sandbox started and nothing else: jobs, then daemons in reverse order."""
        if not self._is_ours():
            return
        with self._lock(make=False):
            self._check_owner()
            names = self.processes.names()
            for name in names:
                if self.processes.alive(name):
                    self.processes.signal(name, signal.SIGCONT)  # a stopped process neither answers nor ends
            with contextlib.suppress(SandboxError):
                others = [n for n in names if n not in self._daemons(self.facts())]
                for name in reversed(others):  # the demo's hub and proxy end before the jobs that they watch
                    progress(f"{name} {self.processes.stop(name)}")
                slurm_answers = all(self.processes.alive(name) for name in ("munged", "slurmctld"))
                ended = end_jobs(self.facts(), alive=slurm_answers)
                if ended:
                    progress(f"{ended} processes of jobs ended")
            for name in reversed(self.processes.names()):
                progress(f"{name} {self.processes.stop(name, within=20)}")
            end_processes(self.layout.state)  # a slurmd that ends may have started an epilog
            if not self._rootless() and privilege.remove_sudoers(self.layout):
                progress(f"{self.layout.sudoers} removed")
            for path in (self.layout.munge_socket, self.layout.rest_socket, self.layout.database / "mysqld.sock"):
                path.unlink(missing_ok=True)

    def reset(self, progress: Progress = _no_progress) -> None:
        """Stop it, and remove its state folder, and the users when no other sandbox needs them."""
        ours = self._is_ours()
        self.down(progress)
        if ours:
            # The lock marks the folder as a sandbox's: it goes last, so that an interrupted reset can be repeated.
            for entry in self.layout.state.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                elif entry != self.layout.lock:
                    entry.unlink()
            shutil.rmtree(self.layout.state)
            progress(f"{self.layout.state} removed")
        if os.geteuid() == 0:
            removed = people.release(self.layout.state)
            if removed:
                progress(f"users removed: {', '.join(removed)}")

    def status(self) -> Status:
        """Return the state of every process and node."""
        try:
            cluster = self.facts()
        except SandboxError:
            return Status(str(self.layout.state), "", os.geteuid() != 0)
        known = list(self._daemons(cluster))
        names = [*known, *(n for n in self.processes.names() if n not in known)]
        rows = []
        for name in names:
            record, state = self.processes.record(name), self.processes.state(name)
            alive = record if record is not None and state == "running" else None
            rows.append(ProcessStatus(name, state, alive.pid if alive else 0, alive.since if alive else 0.0))
        answers = all(self.processes.alive(name) for name in ("munged", "slurmctld"))  # otherwise sinfo waits long
        states = node_states(cluster) if answers else {}
        nodes = tuple(
            NodeStatus(n.name, states.get(n.name, "unknown"), n.gpus) for n in virtual_nodes(len(cluster.node_ports))
        )
        crashed = tuple(row.name for row in rows if row.state == "crashed")
        return Status(str(self.layout.state), cluster.release, cluster.rootless, tuple(rows), nodes, crashed)

    def restart(self, name: str) -> None:
        """Restart one daemon and wait until it answers."""
        with self._lock(make=False):
            cluster = self.facts()
            daemon = self._daemons(cluster).get(name)
            if daemon is None:
                raise SandboxError(f"The sandbox has no {name}")
            self.processes.stop(name, within=60)  # a killed slurmctld loses the jobs of the last five seconds
            self._start(daemon)

    def facts(self) -> Cluster:
        """Return the cluster as recorded; raise ``SandboxError`` when the sandbox was never up."""
        try:
            document = json.loads(self.layout.facts.read_text())
        except FileNotFoundError:
            raise SandboxError(f"There is no sandbox in {self.layout.state}: `{self.layout.command('up')}`") from None
        ports = Ports(**document["ports"])
        prefix, rootless = Path(document["prefix"]), bool(document["rootless"])
        nodes = virtual_nodes(int(document["nodes"]))
        return Cluster(
            layout=self.layout,
            bin=prefix / "bin",
            sbin=prefix / "sbin",
            release=document["release"],
            rootless=rootless,
            ports=ports,
            node_ports={node.name: ports.node(node) for node in nodes},
            passwords=passwords_in(self.layout),
            hub_user=pwd.getpwuid(self.layout.facts.stat().st_uid).pw_name if rootless else people.HUB_USER,
        )

    # -- preparation ---------------------------------------------------------------------------------------------

    def _choose_release_and_nodes(self) -> tuple[Path, tuple[VirtualNode, ...]]:
        """Return release prefix and nodes, and refuse what would break an existing sandbox."""
        try:
            old = self.facts()
        except SandboxError:
            prefix, count = self._wanted_prefix or Path("/usr"), self._wanted_nodes or 4
            return prefix, virtual_nodes(count)
        self._check_owner()
        prefix = self._wanted_prefix or old.bin.parent
        count = self._wanted_nodes or len(old.node_ports)
        if prefix != old.bin.parent:
            first = self.layout.command("reset")
            raise SandboxError(
                f"This sandbox uses the Slurm in {old.bin.parent}: run `{first}` first, or use another --state"
            )
        if count != len(old.node_ports) and self.processes.names():
            first = self.layout.command("down")
            raise SandboxError(f"The sandbox is up with {len(old.node_ports)} nodes: run `{first}` first for {count}")
        return prefix, virtual_nodes(count)

    def _prepare(self, prefix: Path, nodes: tuple[VirtualNode, ...], progress: Progress) -> Cluster:
        begun = time.monotonic()
        layout, rootless = self.layout, self._rootless()
        who = ROOTLESS if rootless else PACKAGED
        for account in (who.slurm, who.munge, who.database):
            if account is not None:
                try:
                    pwd.getpwnam(account)
                except KeyError:
                    raise SandboxError(f"There is no system user {account}: is Debian's package installed?") from None
        hostname.check()
        release = _release(prefix)
        writer = Writer(layout, who)
        passwords = {} if rootless else people.claim(layout.state)
        writer.folders(node.name for node in nodes)
        writer.passwords(passwords)
        kinds = {make_devices(layout.dev, node) for node in nodes}
        virtual_driver.install(layout.dev, nodes)
        ports = self._ports(len(nodes))
        me = pwd.getpwuid(os.geteuid()).pw_name
        settings = Settings(layout, ports, nodes, who.slurm or me, "root" if not rootless else me, writer.secret())
        writer.settings(settings, HUB_MESSAGE_TIMEOUT)
        document = as_document(layout, prefix=prefix, release=release, nodes=len(nodes), ports=ports, rootless=rootless)
        writer.public(layout.facts, document)
        writer.database()
        cluster = self.facts()
        if not rootless:
            privilege.install_helpers(cluster)
            privilege.install_sudoers(layout)
        what = "device nodes" if kinds == {"device"} else "links to /dev/null"
        progress(f"settings written, virtual GPUs are {what} ({time.monotonic() - begun:.1f} s)")
        return cluster

    def _ports(self, nodes: int) -> Ports:
        """Return the ports of last time, or others where a process took one of them while the sandbox was down."""
        try:
            ports = self.facts().ports
        except SandboxError:
            return free_block(self.layout.state, nodes)
        if self.processes.names() or all(is_free(port) for port in ports.all(nodes)):
            return ports
        return free_block(self.layout.state, nodes)

    # -- processes -----------------------------------------------------------------------------------------------

    def _daemons(self, cluster: Cluster) -> dict[str, Daemon]:
        return daemons(cluster, ROOTLESS if cluster.rootless else PACKAGED)

    def _start_missing(self, cluster: Cluster, progress: Progress) -> None:
        wanted = self._daemons(cluster)
        slurmds = [daemon for name, daemon in wanted.items() if name.startswith("slurmd-")]
        for name, daemon in wanted.items():
            if daemon in slurmds:
                continue
            if not self.processes.alive(name):
                how = "crashed, started again" if self.processes.record(name) else "started"
                progress(f"{name} {how} ({self._start(daemon):.1f} s)")
            if name == "slurmctld":  # from then on accounting knows the TRES
                self._write_associations(cluster, progress)
        missing = [daemon for daemon in slurmds if not self.processes.alive(daemon.name)]
        begun = time.monotonic()
        for daemon in missing:  # all at once: they do not depend on each other
            self._launch(daemon)
        for daemon in missing:
            self._wait_ready(daemon, begun)
        if missing:
            progress(f"{len(missing)} slurmd started ({time.monotonic() - begun:.1f} s)")

    def _write_associations(self, cluster: Cluster, progress: Progress) -> None:
        done = self.layout.state / "books-written"
        if done.exists():
            return
        begun = time.monotonic()
        write_associations(cluster, user_name=cluster.hub_user if cluster.rootless else None)
        done.touch()
        progress(f"accounts, associations and QOS written ({time.monotonic() - begun:.1f} s)")

    def _start(self, daemon: Daemon) -> float:
        begun = time.monotonic()
        self._launch(daemon)
        self._wait_ready(daemon, begun)
        return time.monotonic() - begun

    def _launch(self, daemon: Daemon) -> None:
        for path in daemon.sockets:
            path.unlink(missing_ok=True)
        log = log_of(self.layout, daemon.name)
        with hostname.as_localhost():
            self.processes.start(
                daemon.name, daemon.argv, log=log, env=daemon.env, user=daemon.user, umask=daemon.umask
            )

    def _wait_ready(self, daemon: Daemon, begun: float) -> None:
        while not daemon.ready():
            ended = not self.processes.alive(daemon.name)
            if ended or time.monotonic() > begun + daemon.within:
                tail = log_of(self.layout, daemon.name).read_text(errors="replace").strip().splitlines()[-5:]
                what = "ended at once" if ended else f"does not answer after {daemon.within:.0f} s"
                raise SandboxError("\n".join([f"{daemon.name} {what}; its last lines:", *tail]))
            time.sleep(0.02)

    def _resume_nodes(self, cluster: Cluster) -> None:
        """Wait until Slurm accepts jobs on every node; resume nodes that it had set down."""
        end = time.monotonic() + 60
        last_resume = 0.0
        while True:
            states = node_states(cluster)
            bad = {name: state for name, state in states.items() if not _GOOD_NODE.fullmatch(state)}
            if states and not bad:
                return
            if time.monotonic() > end:
                raise SandboxError(f"Nodes are not usable: {bad or 'slurmctld does not answer'}")
            broken = [name for name, state in bad.items() if re.match("down|drain|inval|fail|error", state)]
            if broken and time.monotonic() > last_resume + 2:
                last_resume = time.monotonic()
                cluster.run("scontrol", "update", f"nodename={','.join(broken)}", "state=resume", check=False)
            time.sleep(0.05)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _rootless(self) -> bool:
        return os.geteuid() != 0

    def _is_ours(self) -> bool:
        """Return whether the state folder is a sandbox's, complete or not."""
        return self.layout.facts.exists() or self.layout.lock.exists()

    def _check_owner(self) -> None:
        """Refuse to change another user's sandbox."""
        if not self.layout.facts.exists():
            return
        owner = self.layout.facts.stat().st_uid
        if owner != os.geteuid():
            raise SandboxError(f"This sandbox belongs to {pwd.getpwuid(owner).pw_name}, who alone can change it")

    @contextlib.contextmanager
    def _lock(self, *, make: bool) -> Iterator[None]:
        """Let only one command at a time change a sandbox."""
        if make and not self.layout.state.exists():
            self.layout.state.mkdir(parents=True)
            self.layout.state.chmod(0o755)
        elif make and not self._is_ours() and any(self.layout.state.iterdir()):
            raise SandboxError(f"{self.layout.state} is not empty and not a sandbox's: choose another --state")
        try:
            descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise SandboxError(f"{self.layout.state} belongs to another user") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _release(prefix: Path) -> str:
    """Return the version of the Slurm under a prefix."""
    program = prefix / "sbin/slurmctld"
    if not program.exists():
        raise SandboxError(f"There is no Slurm under {prefix}: install slurm-wlm, or name another with --slurm")
    done = subprocess.run([str(program), "-V"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    if found is None:
        raise SandboxError(f"{program} -V prints no version: {done.stdout or done.stderr}")
    return found.group()
