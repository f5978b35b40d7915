"""What a start costs its node, and how soon its lab answers: ours, and the same server by a bare shell script.

Runs as ``python benchmarks/node.py [--rounds 10]``, as root, without Slurm, in two minutes; prints one JSON object a
line. Each kind starts in random order in the sandbox's default image under bubblewrap, and ends as soon as it answers:

* a lab: our batch script with its data document, as the hub submits them (with the apps, without internal TLS);
  *bare* is a shell script that executes the container with jupyterhub-singleuser, as in ``benchmarks/spawn.py``;
* a light server, which imports nothing: this leaves the cost between Slurm and the server.

Processor time is that of all processes of the start, ended ones included, until its server answers. The Python
interpreters that have started are counted.
"""

from __future__ import annotations

import argparse
import os
import pwd
import random
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import jupyterhub
from bare_sbatch import hub_environment, stub_hub, wait_answer
from hubs import HERE, free_ports, need_root
from measure import figure, load, log_progress, median, p95

from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.images import read_image
from carme_hub.containers.runtime import ContainerRequest, Image
from carme_hub.domain.sessions.session import Request
from carme_hub.sandbox.images.build import build_default_image
from carme_hub.spawners.apps.settings import CarmeApps
from carme_hub.spawners.job_script import PASS_ENV, PATH, Owner, Server, Site, render

TICKS = os.sysconf("SC_CLK_TCK")
USER = "nobody"
LAB = ("jupyterhub-singleuser",)


class Node:
    """Starts servers as a node would for a job, each with its own home."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.folder, self.image = folder, image
        entry = pwd.getpwnam(USER)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid

    def home(self) -> str:
        """Return a new home."""
        path = self.folder / str(uuid.uuid4())
        path.mkdir()
        os.chown(path, self.uid, self.gid)
        light = path / "standin"
        light.write_text("#!/usr/bin/env python3\n" + (HERE / "stub_singleuser.py").read_text())
        light.chmod(0o755)
        return str(path)

    def ours(self, api: str, what: str) -> tuple[float, float, int]:
        """Start a server as the hub does."""
        home, [port], session = self.home(), free_ports(1), str(uuid.uuid4())
        owner = Owner(USER, self.uid, self.gid, home)
        argv = command(home, what)
        environ = {**hub_environment(USER, port, api), "JUPYTERHUB_ROOT_DIR": home}
        del environ["JUPYTERHUB_SERVICE_URL"]
        folder = f"{home}/.carme/sessions/{session}"
        server = Server(argv, environ, f"{api}/callback", "nonce", bind="127.0.0.1", ports=(port, port))
        if what == "lab":
            environ["JUPYTER_CONFIG_PATH"] = folder
            server = Server(**{**fields_of(server), "files": CarmeApps().files()})
        spec = render(
            session,
            owner,
            Request(profile="cpu", image=self.image.name, cpus=1, memory_mib=1024, time_limit=60),
            self.image,
            server,
            Site(Bubblewrap(), bind_roots=(str(HERE),), binds=(), environ={}),
        )
        Path(folder).mkdir(parents=True)
        (Path(folder) / "data.json").write_bytes(spec.data)
        for path in (Path(home) / ".carme", Path(home) / ".carme/sessions", Path(folder), Path(folder) / "data.json"):
            os.chown(path, self.uid, self.gid)
        script = Path(home) / "script"
        script.write_text(spec.script)
        script.chmod(0o755)
        return self._start([str(script)], dict(spec.environment), home, port)

    def bare(self, api: str, what: str) -> tuple[float, float, int]:
        """Start a server by a shell script."""
        home, [port] = self.home(), free_ports(1)
        request = ContainerRequest(
            image=self.image,
            argv=command(home, what),
            home=home,
            session_folder=home,
            user=USER,
            uid=self.uid,
            gid=self.gid,
            environ={"HOME": home, "USER": USER, "LOGNAME": USER, "PATH": PATH, "LANG": "C.UTF-8"},
            pass_env=PASS_ENV,
            workdir=home,
        )
        plan = Bubblewrap().render(request)
        environ = {**plan.environ, **hub_environment(USER, port, api), "JUPYTERHUB_ROOT_DIR": home}
        script = Path(home) / "script"
        script.write_text('#!/bin/sh\nexec "$@"\n')
        script.chmod(0o755)
        return self._start([str(script), *plan.argv], environ, home, port)

    def _start(self, argv: list[str], environ: dict[str, str], home: str, port: int) -> tuple[float, float, int]:
        """Return the seconds to the first answer, the processor seconds until then, and the interpreters of Python."""
        log = os.open(f"{home}/log", os.O_CREAT | os.O_WRONLY, 0o644)
        began = time.perf_counter()
        process = subprocess.Popen(
            argv,
            env={"PATH": "/usr/bin:/bin", **environ},
            cwd=home,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
        try:
            wait_answer(f"http://127.0.0.1:{port}/user/{USER}/api", 60.0)
            took = time.perf_counter() - began
            return took, *cost(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.close(log)


def command(home: str, what: str) -> tuple[str, ...]:
    """Return the server's command."""
    return LAB if what == "lab" else (f"{home}/standin", jupyterhub.__version__)


def fields_of(server: Server) -> dict[str, object]:
    """Return the fields of a server."""
    return {name: getattr(server, name) for name in server.__slots__}


def cost(top: int) -> tuple[float, int]:
    """Return the processor seconds of a process and its descendants, and the number of Python interpreters."""
    seconds, pythons = 0.0, 0
    for pid in process_tree(top):
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        seconds += sum(map(int, ended)) / TICKS
        for task in Path(f"/proc/{pid}/task").iterdir():
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
        pythons += "python" in os.path.realpath(f"/proc/{pid}/exe")
    return seconds, pythons


def process_tree(top: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield top
    for task in Path(f"/proc/{top}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from process_tree(int(child))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10, help="starts of each kind that count; one more warms up")
    args = parser.parse_args()
    need_root()
    image = read_image(build_default_image(progress=log_progress))
    folder = Path("/var/lib/carme-hub-bench-node")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    before = load()
    try:
        node = Node(folder, image)
        with stub_hub() as api:
            for number in range(-1, args.rounds):
                kinds = [(kind, what) for kind in ("ours", "bare") for what in ("lab", "light")]
                random.shuffle(kinds)
                for kind, what in kinds:
                    seen = getattr(node, kind)(api, what)
                    log_progress(f"round {number}: {kind}, {what}: {seen[0]:.2f} s, {seen[1]:.3f} s of processor")
                    if number >= 0:
                        found.setdefault((kind, what), []).append(seen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(found, f"{before} to {load()}")


def report(found: dict[tuple[str, str], list[tuple[float, float, int]]], load_seen: str) -> None:
    """Print the figures."""
    for what in ("lab", "light"):
        ours, bare = (list(zip(*found[kind, what], strict=True)) for kind in ("ours", "bare"))
        more = {"n": len(ours[0]), "load": load_seen}
        goal = 0.5 if what == "lab" else None
        figure(f"node_{what}_first_answer_median", median(ours[0]), "s", peer=median(bare[0]), goal=goal, **more)
        figure(f"node_{what}_first_answer_p95", p95(ours[0]), "s", peer=p95(bare[0]), **more)
        figure(f"node_{what}_processor_median", median(ours[1]), "s", peer=median(bare[1]), **more)
        figure(f"node_{what}_interpreters", max(ours[2]), "interpreters", peer=max(bare[2]), **more)


if __name__ == "__main__":
    main()
