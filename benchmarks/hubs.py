"""The environment of the benchmarks: a separate sandbox, our hub in front of it, and a second hub with batchspawner.

Everything is below one state folder of the benchmark and is removed at the end. Each hub has its own proxy and the same
JupyterHub; the benchmarks use both in the same way, through the proxy and with an API token.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from measure import log_progress

from carme_hub.sandbox import Cluster, Sandbox
from carme_hub.sandbox.demo import Demo

HERE = Path(__file__).resolve().parent
Sections = Mapping[str, Mapping[str, Any]]

_OVERLAY = """\
# Written by a benchmark: the sandbox's own file, and the benchmark's settings.
import json
load_subconfig({demo!r})
c = get_config()
for section, values in json.loads({settings!r}).items():
    for name, value in values.items():
        c[section][name] = value
# Services were defined before that: they use the hub's protocol, and read this file.
for service in c.JupyterHub.get("services", []):
    if not c.JupyterHub.internal_ssl:
        service["url"] = service.get("url", "").replace("https:", "http:")
    if "--config" in service.get("command", []):
        service["command"][service["command"].index("--config") + 1] = __file__
if {stalls!r}:  # the folder with stalls.py
    import sys
    sys.path.insert(0, {stalls!r})
    import stalls
    stalls.watch("stalls.jsonl")
"""


@dataclass(frozen=True)
class HubAddress:
    """A hub: the address of its proxy, an administrator's token, and its process."""

    name: str
    url: str
    token: str
    pid: int
    log: Path
    #: The file with the stalls of its event loop; None where they are not recorded.
    stalls: Path | None = None


class MeasuredDemo(Demo):
    """The demo with some settings changed."""

    @property
    def config_file(self) -> Path:
        return self.cluster.state / "our-hub.py"

    def write_config(self, settings: Sections, *, stalls: bool = False) -> None:
        """Write the configuration: the sandbox's, with these settings; ``stalls``: record stalls of the event loop."""
        folder = ""
        if stalls:
            folder = str(self.cluster.state / "stalls")
            Path(folder).mkdir(exist_ok=True, mode=0o755)
            shutil.copyfile(HERE / "stalls.py", Path(folder) / "stalls.py")
            (Path(folder) / "stalls.py").chmod(0o644)
        text = _OVERLAY.format(demo=str(super().config_file), settings=json.dumps(settings), stalls=folder)
        self.config_file.write_text(text)
        self.config_file.chmod(0o644)


@contextlib.contextmanager
def sandbox(name: str, nodes: int, *, keep: bool = False) -> Iterator[Sandbox]:
    """Start a separate sandbox, and remove it at the end, also after a signal."""
    old = signal.signal(signal.SIGTERM, _interrupt)
    found = Sandbox(Path(f"/var/lib/carme-hub-bench-{name}"), nodes)
    try:
        found.up(log_progress)
        yield found
    finally:
        if keep:
            found.down()
        else:
            found.reset()
        signal.signal(signal.SIGTERM, old)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def start_our_hub(
    where: Sandbox, settings: Sections | None = None, *, tls: bool = True, stalls: bool = False
) -> HubAddress:
    """Start our hub as the sandbox does, with some settings changed.

    Args:
        tls: with internal TLS, as in the sandbox; without it, the hub starts its proxy itself.
        stalls: record the stalls of its event loop in ``stalls.jsonl`` in its folder.
    """
    demo = MeasuredDemo.prepare(where, log_progress)
    assert isinstance(demo, MeasuredDemo)
    for stale in (*demo.folder.glob("*.sqlite*"), *demo.folder.glob("stalls.jsonl")):  # of an earlier run with --keep
        stale.unlink()
    changed = {section: dict(values) for section, values in (settings or {}).items()}
    token = {"CARME_SANDBOX_CHECK_TOKEN": secrets.token_hex(16)}
    if tls:
        demo.write_config(changed, stalls=stalls)
        demo.start(log_progress, token)
    else:
        ports = demo.ports
        plain = {"internal_ssl": False, "hub_bind_url": f"http://127.0.0.1:{ports['hub']}", "cleanup_proxy": True}
        changed["JupyterHub"] = {**changed.get("JupyterHub", {}), **plain}
        proxy = {"should_start": True, "api_url": f"http://127.0.0.1:{ports['proxy_api']}"}
        changed["ConfigurableHTTPProxy"] = {**changed.get("ConfigurableHTTPProxy", {}), **proxy}
        demo.write_config(changed, stalls=stalls)
        log_progress("Starting the hub without internal TLS")
        demo.start_hub(token)
        demo.wait_ready()
    record = where.processes.record("hub")
    assert record is not None
    file = demo.folder / "stalls.jsonl" if stalls else None
    return HubAddress("ours", demo.url, token["CARME_SANDBOX_CHECK_TOKEN"], record.pid, demo.log, file)


def start_peer_hub(
    where: Sandbox, environment: Path, settings: Sections, *, wrapper: str, server: list[str]
) -> HubAddress:
    """Start a plain JupyterHub with batchspawner's SlurmSpawner.

    It runs as root, so that its ``sudo`` needs no rule, and from an environment without Carme Hub, which disables
    batchspawner's callback.

    Args:
        environment: the result of ``peer_environment``.
        wrapper, server: the commands on the node: batchspawner's wrapper, and the server's command after it.
    """
    cluster = where.facts()
    folder = where.layout.state / "peer"
    folder.mkdir(exist_ok=True, mode=0o711)
    token, ports = secrets.token_hex(16), free_ports(3)
    facts = {
        "folder": str(folder),
        "ports": ports,
        "token": token,
        "slurm_conf": str(cluster.slurm_conf),
        "path": f"{cluster.bin}:/usr/bin:/bin",
        "wrapper": wrapper,
        "cmd": server,
        "settings": settings,
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    (folder / "facts.json").chmod(0o600)
    for stale in ("jupyterhub.sqlite", "jupyterhub-proxy.pid"):
        (folder / stale).unlink(missing_ok=True)
    log = cluster.layout.log / "peer-hub.log"
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{cluster.bin}:/usr/bin:/bin:/usr/sbin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(cluster.slurm_conf),
        "BENCHMARK_PEER": str(folder / "facts.json"),
        "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16),
        "PYTHONPATH": str(environment / "site"),
        "PYTHONUNBUFFERED": "1",
    }
    argv = [str(environment / "bin/python3"), "-m", "jupyterhub", "-f", str(HERE / "peer_hub.py")]
    log_progress("Starting the hub with batchspawner")
    pid = where.processes.start("peer-hub", argv, log=log, env=environ, cwd=folder, umask=0o077, group=True)
    hub = HubAddress("batchspawner", f"http://127.0.0.1:{ports[0]}", token, pid, log)
    wait_ready(hub)
    return hub


def peer_environment(where: Sandbox, image: Path) -> Path:
    """Return a Python environment for the peer: the image's own files, and batchspawner, without a container."""
    found = importlib.util.find_spec("batchspawner")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("batchspawner is not in this environment: install the extra 'test'")
    folder = where.layout.state / "peer-environment"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python3").symlink_to("/usr/bin/python3")  # the image's leads to the container's
    for name in ("lib", "share", "etc", "pyvenv.cfg"):
        (folder / name).symlink_to(image / "opt/venv" / name)
    (folder / "bin/jupyterhub-singleuser").symlink_to(image / "opt/venv/bin/jupyterhub-singleuser")
    # By sys.path, because sudo does not pass PYTHONPATH.
    wrapper = (
        f"import sys\nsys.path.append({str(folder / 'site')!r})\nfrom batchspawner.singleuser import main\nmain()\n"
    )
    (folder / "bin/batchspawner-singleuser").write_text(wrapper)
    shutil.copytree(found.submodule_search_locations[0], folder / "site/batchspawner")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder / "site")], check=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def wait_ready(hub: HubAddress, within: float = 60.0) -> None:
    """Wait until a hub answers through its proxy."""
    end = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(f"{hub.url}/hub/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > end:
            raise SystemExit(f"The hub does not answer:\n{hub.log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Return unused ports of 127.0.0.1."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def wait_idle(cluster: Cluster, within: float = 60.0) -> None:
    """Wait until no job runs, waits or ends."""
    cluster.wait_for(lambda: not cluster.squeue("-t", "PD,R,S,CG,CF"), within=within)


@contextlib.contextmanager
def nodes_last(where: Sandbox) -> Iterator[None]:
    """Give slurmd, and so all jobs, the lowest processor priority: on a cluster they run on other machines.

    This uses a control group, because ``nice`` applies only within one session of processes.
    """
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    base, setting, least = (old, "cpu.shares", "2") if old.is_dir() else (new, "cpu.weight", "1")
    group = base / f"carme-hub-{where.layout.mark}"
    try:
        group.mkdir(exist_ok=True)
        (group / setting).write_text(least)
        for name in where.processes.names():
            record = where.processes.record(name)
            if name.startswith("slurmd-") and record is not None:
                (group / "cgroup.procs").write_text(str(record.pid))
    except OSError as error:
        log_progress(f"The nodes' processes compete with the hub's: no control group can be used ({error.strerror})")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                (base / "cgroup.procs").write_text(pid)
            group.rmdir()


def need_root() -> None:
    """Exit where this process cannot become the users whose servers it starts."""
    if os.geteuid() != 0:
        raise SystemExit("This benchmark starts servers of several users: run it as root, as `make demo` is")
