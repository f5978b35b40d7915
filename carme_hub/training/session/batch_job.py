"""The step broker's replacement in a batch job of the user's own: srun itself starts the run's steps.

The batch script of ``--dry-run`` runs so, outside of the hub. There are no companions: a run has the resources of its
job. ``CARME_CONTAINER`` is put before a rank's command, such as ``apptainer exec --nv image.sif``.
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
KILL_AFTER = 3.0


def broker_here(environ: Mapping[str, str] = os.environ) -> Broker:
    """Return the session's step broker, or srun in a job that is no session."""
    if "CARME_SESSION_FOLDER" not in environ and "SLURM_JOB_ID" in environ:
        return DirectBroker(environ)
    return Broker()


class DirectBroker(Broker):
    """A ``Broker`` that runs srun in the job of this process."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__("")
        self._environ = environ

    def allocation(self, companion: str = "") -> Allocation:
        """Return the resources of the job; errors as ``Broker``'s."""
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
        """Have Slurm requeue this job; errors as ``Broker``'s."""
        self._ask("scontrol", "requeue", self._environ["SLURM_JOB_ID"])

    def start(self, step: Step, out: int, err: int) -> DirectStep:
        """Start ranks; see ``Broker``."""
        if step.slot:  # an elastic run: only a session's broker gives each step its own GPUs
            raise NoBroker("Outside of a session of the hub a run has a fixed number of ranks: leave --elastic out.")
        have, environ = self.allocation(step.companion), self._for_srun()
        argv = [
            self._program("srun"),
            *srun_options(step, have),
            *shlex.split(environ.get("CARME_CONTAINER", "")),
            *step.argv,
        ]
        process = subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        return DirectStep(process)

    def _for_srun(self) -> dict[str, str]:
        """Return the environment without srun's options (srun(1), INPUT ENVIRONMENT VARIABLES)."""
        # Ranks need the variables of a job array; srun does not read them.
        taken = re.compile("(SLURM_(?!ARRAY_)|SRUN_|SBATCH_)")
        ours = {name: value for name, value in self._environ.items() if not taken.match(name)}
        return ours | {name: self._environ[name] for name in ("SLURM_CONF",) if name in self._environ}

    def _address(self, nodes: tuple[str, ...]) -> str:
        here = self._environ.get("SLURMD_NODENAME", "")
        for name in [node for node in nodes if node != here][:1]:
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
                way.connect((self._node_address(name), 9))  # nothing is sent: the kernel only chooses the route
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
            reason = str(error.stderr or "it does not answer").strip()[-300:]
            raise NoBroker(f"Slurm refused a request for the job: {reason}") from error
        return done.stdout

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._environ.get("PATH", os.defpath))
        if found is None:
            raise NoBroker(f"{name} is not on this node's PATH, so no ranks can be started.")
        return found


def srun_options(step: Step, have: Allocation) -> list[str]:
    """Return the options of srun for a step, as a session's broker sets them, apart from those for its own output."""
    nodes = (step.nodes or have.nodes)[: step.ranks]
    return [
        *(f"--jobid={have.job}", "--nodelist=" + ",".join(nodes), f"--nodes={len(nodes)}"),
        *(f"--ntasks={step.ranks}", "--distribution=block", "--overcommit", "--overlap", "--mem=0"),
        *("--cpu-bind=none", f"--gres=gpu:{step.gpus_per_node}" if step.gpus_per_node else "--gres=none"),
        *(f"--mpi={step.mpi}", f"--job-name=carme-run-{step.run}", "--wait=0", "--input=none"),
        *(f"--kill-on-bad-exit={int(step.kill_on_bad_exit)}", "--disable-status", "--label"),
    ]


class DirectStep(RunningStep):
    """A ``RunningStep`` whose ranks run until ``close``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._ending = process, threading.Lock()
        self._file = os.pidfd_open(process.pid)
        self.id, self.messages = "", ()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when ``wait(0)`` has news."""
        return self._file

    def wait(self, timeout: float | None = None) -> int | None:
        """Return srun's exit status; None where it still runs after ``timeout`` seconds."""
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
        """End the step."""
        self._kill()

    def _kill(self) -> None:
        with self._ending:
            if self._process.poll() is None:
                self._process.terminate()  # srun ends its step
                try:
                    self._process.wait(KILL_AFTER)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
