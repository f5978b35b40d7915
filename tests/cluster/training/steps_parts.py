"""A session's job with its step broker, and a program in it that requests ranks; without a hub and a notebook."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from carme_hub.containers.images import read_image
from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image, Runtime
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.images.build import build_default_image
from carme_hub.sandbox.processes import identity
from carme_hub.spawners.job_script import LAUNCH, Owner, Server, Site, render

#: Its text: the checkout may lie where its users cannot read it.
BROKER = (Path(__file__).parents[3] / "carme_hub/training/session/step_broker.py").read_text(encoding="utf-8")
USER = "alice"
#: The code before the code that requests ranks.
CLIENT = """
import os, sys, threading, time, types
broker = sys.modules["broker"] = types.ModuleType("broker")
exec(compile({broker!r}, "broker.py", "exec"), broker.__dict__)
Step, PY = broker.Step, "/opt/venv/bin/python"
the = broker.Broker({folder!r})

class Ranks:
    '''Ranks that run, and the lines that they have written.'''
    def __init__(self, step):
        self.began, self.lines, self.errors = time.monotonic(), [], []
        out, err = os.pipe(), os.pipe()
        self.step = the.start(step, out[1], err[1])
        os.close(out[1]); os.close(err[1])
        pairs = ((out[0], self.lines), (err[0], self.errors))
        self.threads = [threading.Thread(target=self.read, args=pair, daemon=True) for pair in pairs]
        for each in self.threads: each.start()
    def read(self, fd, lines):
        with os.fdopen(fd) as file:
            for line in file: lines.append(line.rstrip())
    def until(self, words, times):
        end = time.monotonic() + 60
        while sum(words in line for line in self.lines) < times:
            assert time.monotonic() < end, (words, self.lines, self.errors)
            time.sleep(0.02)
    def end(self):
        status = self.step.wait(30)
        for each in self.threads: each.join()
        return status

def ranks(number, code, **more):
    return Ranks(Step(more.pop("run", "test"), number, (PY, "-c", code), **more))

def all_of(number, code, **more):
    found = ranks(number, code, **more)
    return found.end(), sorted(found.lines), found
"""
#: A rank that ignores what can be ignored, with a child that has left it and does as well.
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
os.write(1, b"up\\n")  # print would write the end of the line by itself, after that of the other
time.sleep(600)
"""
#: In place of the server: it ends on TERM.
SLEEPER = (
    *("/opt/venv/bin/python", "-c"),
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.pause()",
)


class Job:
    """One job as the hub would submit it for a session, with a sleeping process in place of the server.

    Args:
        argv: the command in its place. container: runtime and image, by default bubblewrap and the default image.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        nodes: int = 1,
        gpus: int = 0,
        cpus: int = 2,
        argv: tuple[str, ...] = SLEEPER,
        container: tuple[Runtime, Image] | None = None,
    ) -> None:
        self.cluster, self.id = cluster, str(uuid.uuid4())
        self.user = pwd.getpwnam(USER)
        owner = Owner(USER, self.user.pw_uid, self.user.pw_gid, self.user.pw_dir)
        request = Request("test", "default", gpus=Gpus("a100", gpus) if gpus else Gpus())
        server = Server(("jupyterhub-singleuser",), {"JUPYTERHUB_API_TOKEN": "SECRET"}, "http://hub/", "NONCE")
        kind, image = container or (runtime("bubblewrap"), read_image(build_default_image()))
        spec = render(self.id, owner, request, image, server, Site(kind))
        self.folder = Path(spec.session_folder)
        document = json.loads(spec.data)
        words = document["plan"]["argv"]
        words[words.index(f"{self.folder}/carme-singleuser") :] = argv
        # Secrets stay in the document, as with a real session, but no server takes them out.
        document["secrets"] = document.pop("singleuser")
        self._write(json.dumps(document))
        options = [f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", "--mem=2000", "--time=10"]
        options += [f"--gres=gpu:a100:{gpus}"] if gpus else []
        own = f"CARME_SESSION={self.id},CARME_SESSION_FOLDER={self.folder}"
        options += [f"--export={own}", f"--job-name=carme-{self.id}", "--no-requeue"]
        self.job = cluster.sbatch(*options, user=USER, script=LAUNCH)

    def _write(self, text: str) -> None:
        for part in (self.folder.parents[1], self.folder.parents[0], self.folder):
            part.mkdir(mode=0o700, exist_ok=True)
            os.chown(part, self.user.pw_uid, self.user.pw_gid)
        data = self.folder / "data.json"
        data.write_text(text)
        data.chmod(0o600)
        os.chown(data, self.user.pw_uid, self.user.pw_gid)

    @property
    def log(self) -> str:
        path = self.folder / "job.log"
        return path.read_text() if path.exists() else ""

    def wait(self, name: str = "steps.sock") -> Job:
        """Wait until a file is in the session folder."""
        end = time.monotonic() + 30
        while not (self.folder / name).exists():
            assert time.monotonic() < end, f"{self.cluster.job_state(self.job)}: {self.log}"
            time.sleep(0.05)
        return self

    def start_client(self, code: str, user: str = USER) -> subprocess.Popen[str]:
        """Start a program that requests ranks from the broker, on the session's node."""
        text = CLIENT.format(broker=BROKER, folder=str(self.folder)) + code
        environ = self.cluster.environment(user)
        return subprocess.Popen(
            ["/usr/bin/python3", "-c", text],
            env=environ,
            cwd="/",
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **identity(user),  # type: ignore[call-overload]
        )

    def run_client(self, code: str, user: str = USER, timeout: float = 60) -> Any:
        """Run such a program to its end; return its last output as JSON."""
        process = self.start_client(f"import json\ndef main():\n{_indented(code)}\nprint(json.dumps(main()))\n", user)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        assert process.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    def steps(self) -> list[str]:
        """Return Slurm's steps, without that of the batch script."""
        found = self.cluster.run("squeue", "-h", "--steps", "-j", str(self.job), "-o", "%i").stdout.split()
        return [step for step in found if step.split(".")[1].isdigit()]

    def processes(self) -> dict[int, tuple[str, bytes]]:
        """Return pid to command line and environment of all processes that name the session in either."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line, environ = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
                if self.id.encode() in line + environ:
                    found[int(path.name)] = line.replace(b"\0", b" ").decode(), environ
        return found

    def ranks(self) -> list[str]:
        """Return the command lines of the processes in a step."""
        return [line[-300:] for line, environ in self.processes().values() if b"SLURM_STEP_ID=" in environ]

    def leftovers(self) -> list[str]:
        """Return the files that steps and ranks have left in the session folder."""
        return [path.name for path in self.folder.iterdir() if path.name.startswith(("step-", "rank-"))]

    def end(self) -> None:
        """Cancel it, and wait until it has ended."""
        self.cluster.run("scancel", str(self.job), user=USER, check=False)
        self.cluster.wait_job(self.job, "CANCELLED", "COMPLETED", "FAILED", "", within=30)


def _indented(code: str) -> str:
    return "\n".join("    " + line for line in code.strip().splitlines())
