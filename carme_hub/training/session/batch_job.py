"""In a batch job of one's own there is no step broker, and none is needed: the run's steps are started by srun itself.

This is how the batch script of ``--dry-run`` runs outside of the hub. There are no companions here: a run has what its
job has. ``CARME_CONTAINER`` is what comes before a rank's command, such as ``apptainer exec --nv image.sif``.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping

from .step_broker import Allocation, Broker, NoBroker, NotReady, RunningStep, Step

_SIGNALS = {"INT": signal.SIGINT, "USR1": signal.SIGUSR1, "TERM": signal.SIGTERM}
#: Seconds after which srun itself is killed; its step ends with it.
LAST = 3.0


def broker_here(environ: Mapping[str, str] = os.environ) -> Broker:
    """Return what starts ranks here: the session's broker, or srun in a job that is no session."""
    if "CARME_SESSION_FOLDER" not in environ and "SLURM_JOB_ID" in environ:
        return DirectBroker(environ)
    return Broker()


class DirectBroker(Broker):
    """As ``Broker``, by srun in the job that this process is in."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__("")
        self._environ = environ

    def allocation(self, companion: str = "") -> Allocation:
        """Return what the job has; errors as ``Broker``'s."""
        if companion:
            raise NotReady("There are no companions outside of a session of the hub. Ask for more nodes in the script.")
        nodes = tuple(self._ask("scontrol", "show", "hostnames", self._environ.get("SLURM_JOB_NODELIST", "")).split())
        gpus, ends = self._environ.get("SLURM_GPUS_ON_NODE", ""), self._environ.get("SLURM_JOB_END_TIME", "")
        cpus = [
            int(word) for word in re.findall(r"(\d+)(?:\(x\d+\))?", self._environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        ]
        return Allocation(
            job=int(self._environ["SLURM_JOB_ID"]),
            nodes=nodes,
            cpus=min(cpus or [1]),
            gpus=int(gpus) if gpus.isdigit() else 0,
            gpu_type="",
            ends=float(ends) if ends.isdigit() else 0.0,
            address=self._address(nodes),
        )

    def requeue(self) -> None:
        """Have Slurm end this job and run it again, in another allocation; errors as ``Broker``'s."""
        self._ask("scontrol", "requeue", self._environ["SLURM_JOB_ID"])

    def start(self, step: Step, out: int, err: int) -> DirectStep:
        """Start ranks; see ``Broker``."""
        if step.slot:  # several steps, of which each must have GPUs of its own: a session's broker sees to that
            raise NoBroker("Outside of a session of the hub a run has a fixed number of ranks: leave --elastic out.")
        have, environ = self.allocation(step.companion), self._for_srun()
        argv = [
            self._program("srun"),
            *options(step, have),
            *shlex.split(environ.get("CARME_CONTAINER", "")),
            *step.argv,
        ]
        process = subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        return DirectStep(process)

    def _for_srun(self) -> dict[str, str]:
        """Return the environment less what srun would take options from (srun(1), INPUT ENVIRONMENT VARIABLES)."""
        # Which task of a job array this is, is for the ranks to know; srun takes nothing from that.
        taken = re.compile("(SLURM_(?!ARRAY_)|SRUN_|SBATCH_)")
        ours = {name: value for name, value in self._environ.items() if not taken.match(name)}
        return ours | {name: self._environ[name] for name in ("SLURM_CONF",) if name in self._environ}

    def _address(self, nodes: tuple[str, ...]) -> str:
        here = self._environ.get("SLURMD_NODENAME", "")
        for name in [node for node in nodes if node != here][:1]:
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
                way.connect((self._node_address(name), 9))  # nothing is sent: the kernel looks for the way
                return str(way.getsockname()[0])
        try:
            return socket.gethostbyname(self._node_address(here))
        except OSError:
            return "127.0.0.1"  # enough, where all ranks are on this node

    def _node_address(self, name: str) -> str:
        found = re.search(r"\sNodeAddr=(\S+)", self._ask("scontrol", "-o", "show", "node", name))
        return found[1] if found else name

    def _ask(self, name: str, *words: str) -> str:
        try:
            done = subprocess.run(
                [self._program(name), *words],
                env=self._for_srun(),
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = str(error.stderr or "it does not answer").strip()[-300:]
            raise NoBroker(f"Slurm refused what was asked of the job: {said}") from error
        return done.stdout

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._environ.get("PATH", os.defpath))
        if found is None:
            raise NoBroker(f"{name} is not on this node's PATH, so no ranks can be started.")
        return found


def options(step: Step, have: Allocation) -> list[str]:
    """Return the options of srun for a step; all but how srun itself is heard are those of the session's broker."""
    nodes = (step.nodes or have.nodes)[: step.ranks]
    return [
        *(f"--jobid={have.job}", "--nodelist=" + ",".join(nodes), f"--nodes={len(nodes)}"),
        *(f"--ntasks={step.ranks}", "--distribution=block", "--overcommit", "--overlap", "--mem=0"),
        *("--cpu-bind=none", f"--gres=gpu:{step.gpus_per_node}" if step.gpus_per_node else "--gres=none"),
        *(f"--mpi={step.mpi}", f"--job-name=carme-run-{step.run}", "--wait=0", "--input=none"),
        *(f"--kill-on-bad-exit={int(step.kill_on_bad_exit)}", "--disable-status", "--label"),
    ]


class DirectStep(RunningStep):
    """As ``RunningStep``: ranks that run until ``close``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._ending = process, threading.Lock()
        self._file = os.pidfd_open(process.pid)
        self.id, self.said = "", ()

    def fileno(self) -> int:
        """Return what becomes readable when there is news for ``wait(0)``."""
        return self._file

    def wait(self, timeout: float | None = None) -> int | None:
        """Return srun's exit status; None when it still runs after ``timeout`` seconds."""
        waiting = select.poll()
        waiting.register(self._file, select.POLLIN)
        if self._process.returncode is None and not waiting.poll(None if timeout is None else timeout * 1000):
            return None
        code = self._process.wait()
        return 128 - code if code < 0 else code

    def signal(self, name: str) -> None:
        """Send INT, TERM or USR1 to all processes of the ranks; KILL ends them all within 5 seconds."""
        if name == "KILL":
            threading.Thread(target=self._kill, daemon=True).start()
        else:
            self._process.send_signal(_SIGNALS[name])

    def close(self) -> None:
        """End what still runs of it."""
        self._kill()

    def _kill(self) -> None:
        with self._ending:
            if self._process.poll() is None:
                self._process.terminate()  # srun ends its step
                try:
                    self._process.wait(LAST)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
