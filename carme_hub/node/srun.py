#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP022, UP035, PTH108, PTH110, PTH118, PTH120, PTH123, PTH208
"""carme-srun: the part of carme-steps that uses Slurm: it reads what a job has, and runs one step.

Only a few fields of a request become options of srun, and each is validated here. The words of a rank's command reach
only the container. Standard library only, Python 3.6 or later.

srun(1): TERM makes srun kill the step at once; INT (with --disable-status) and USR1 go to all processes of the step.
A step gets all GPUs of its nodes, and CARME_GPUS says which ones its ranks use: Slurm would give overlapping steps the
first ones each. Ranks end, or do not start, when the step's mark in the session folder, ``step-TOKEN``, is gone:
without Slurm's controller neither srun nor scancel can end them.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Dict, List, Tuple

MOST_RANKS, MOST_GPUS = 4096, 128
#: Seconds after the request to end a step, whose ranks get TERM at once: TERM to srun, KILL by scancel, KILL to srun.
SRUN_TERM_AFTER, CANCEL_AFTER, SRUN_KILL_AFTER = 3.5, 4.2, 4.7
COMMAND_SECONDS, PR_SET_PDEATHSIG, LIBC = 20.0, 1, ctypes.CDLL(None)
#: Folders of srun on clusters that do not have it in PATH.
SLURM_FOLDERS = "/usr/bin:/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin:/cm/shared/apps/slurm/current/bin"
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LAUNCHING = re.compile(r"launching StepId=([0-9]+\.[0-9]+)")
SIGNALS = {"INT": signal.SIGINT, "USR1": signal.SIGUSR1}
#: Lines of srun -v that are reported: why there is no step, which task failed; those at the end of a step are expected.
ERROR_LINE = re.compile(r"srun: (error|fatal|Warning): ")
USELESS_LINE = re.compile(r"srun: Warning: can't run ")
EXPECTED_LINE = re.compile(r"srun: (error: \S+ tasks? \S+ (Terminated|Killed)|Warning: can't run )")


class Refused(Exception):
    """A refused request: the client gets the message; ``kind`` is "bad", "notready" or "slurm"."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


# -- the resources of a job -------------------------------------------------------------------------------------------


def command_environ() -> Dict[str, str]:
    """Return the environment for Slurm's commands; others of the job's variables are options of srun (srun(1))."""
    own = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "SLURM_CONF", "TZ") if name in os.environ}
    return {"PATH": os.environ.get("PATH", os.defpath) + ":" + SLURM_FOLDERS, "LANG": "C.UTF-8", **own}


def find_program(name: str) -> str:
    """Return the path of a Slurm command."""
    found = shutil.which(name, path=command_environ()["PATH"])
    if found is None:
        raise Refused("slurm", f"{name} is not on this node, so no ranks can be started: tell the administrator.")
    return found


def run_command(*argv: str) -> str:
    """Run a Slurm command and return its output."""
    try:
        done = subprocess.run(
            [find_program(argv[0]), *argv[1:]],
            env=command_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused("slurm", "Slurm does not answer. Try again in a minute.") from error
    if done.returncode:
        reason = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"])[-1]
        raise Refused("slurm", f"Slurm does not say what the job has: {reason[:300]}")
    return done.stdout.decode("utf-8", "replace")


def job_of(companion: str) -> int:
    """Return the job of a companion; "" means the session's own job."""
    if not companion:
        return int(os.environ["SLURM_JOB_ID"])
    if not UUID.fullmatch(companion):
        raise Refused("bad", f"{companion[:60]!r} is not the id of a companion.")
    found = run_command("squeue", "-h", "-u", str(os.geteuid()), "-n", "carme-" + companion, "-o", "%A %T").splitlines()
    jobs = dict(line.split() for line in found if line.strip())
    running = [int(job) for job, state in jobs.items() if state == "RUNNING"]
    if not running:
        state = next(iter(jobs.values()), "")
        problem = f"is {state.lower()}, and not running" if state else "has ended, or was never submitted to Slurm"
        raise Refused("notready", f"The companion {companion} {problem}.")
    return max(running)


def allocation(job: int) -> Dict[str, Any]:
    """Return the resources of a job: its nodes, and the smallest number of CPUs and GPUs on any of them."""
    text = run_command("scontrol", "-d", "-o", "show", "job", str(job))
    words = dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", text))
    if words.get("JobState") != "RUNNING":
        raise Refused("notready", f"Job {job} is {words.get('JobState', 'gone').lower()}, and not running.")
    cpus, gpus, kinds, ends = [], [], set(), 0.0
    for ids, gres in re.findall(r"\sNodes=\S+ CPU_IDs=(\S*) Mem=\d+ GRES=(\S*)", text):
        cpus.append(count_ids(ids))
        here = re.findall(r"(?:^|,)gpu:(?:([^:,()]+):)?(\d+)", gres)
        gpus.append(sum(int(count) for _, count in here))
        kinds |= {kind for kind, _ in here}
    if words.get("TimeLimit") != "UNLIMITED":  # UNLIMITED shows an end in one year
        with contextlib.suppress(ValueError, OverflowError):
            ends = time.mktime(time.strptime(words.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    return {
        "job": job,
        "nodes": run_command("scontrol", "show", "hostnames", words.get("NodeList", "")).split(),
        "cpus": min(cpus or [1]),
        "gpus": min(gpus or [0]),
        "gpu_type": kinds.pop() if len(kinds) == 1 else "",
        "ends": ends,
    }


def count_ids(ids: str) -> int:
    """Count the ids in a list such as ``0-3,8``."""
    pairs = [part.partition("-") for part in ids.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)


def address(nodes: List[str]) -> str:
    """Return the IPv4 address of this node that other nodes reach; for a lone node, future companions."""
    here, own = os.environ.get("SLURMD_NODENAME", ""), "127.0.0.1"  # enough, where all ranks are on this node
    with contextlib.suppress(OSError):
        own = socket.gethostbyname(node_address(here))
    others = [node for node in nodes if node != here]
    if not others and own.startswith("127."):  # Debian's installer maps a host's own name to 127.0.1.1
        with contextlib.suppress(Refused):  # sinfo prints a line for each partition
            others = [node for node in dict.fromkeys(run_command("sinfo", "-hrN", "-o", "%N").split()) if node != here]
    for name in others[:3]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((node_address(name), 9))  # nothing is sent: the kernel only chooses the route
            return str(probe.getsockname()[0])
    return own


def node_address(name: str) -> str:
    """Return the address by which Slurm reaches a node."""
    return [*re.findall(r"\sNodeAddr=(\S+)", run_command("scontrol", "-o", "show", "node", name)), name][0]


def choose_gpus(gpu_file: int, job: int, nodes: List[str], wanted: int, available: int) -> List[int]:
    """Choose GPUs for a step: the same ids on every node, and those that the fewest steps use.

    Args:
        gpu_file: file shared by all processes of carme-steps, in which each running one lists the GPUs that it uses.
    """
    fcntl.lockf(gpu_file, fcntl.LOCK_EX)
    try:
        entries = json.loads(os.pread(gpu_file, 1 << 20, 0).decode() or "[]")
        living = [each for each in entries if each["pid"] != os.getpid() and os.path.exists(f"/proc/{each['pid']}")]
        used = [0] * available
        for each in living:
            if each["job"] == job and set(each["nodes"]) & set(nodes):
                for number in each["gpus"]:
                    used[number] += 1
        chosen = sorted(sorted(range(available), key=lambda number: used[number])[:wanted])
        mine = {"pid": os.getpid(), "job": job, "nodes": nodes, "gpus": chosen}
        os.ftruncate(gpu_file, 0)
        os.pwrite(gpu_file, json.dumps([*living, mine]).encode(), 0)
        return chosen
    finally:
        fcntl.lockf(gpu_file, fcntl.LOCK_UN)


# -- one step ---------------------------------------------------------------------------------------------------------


def validated(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return a request if each of its fields is valid for srun."""
    fine: Dict[str, Callable[[Any], bool]] = {
        "run": lambda it: bool(WORD.fullmatch(it)),
        "ranks": lambda it: type(it) is int and 0 < it <= MOST_RANKS,
        "argv": lambda it: isinstance(it, list) and bool(it) and all("\0" not in word for word in it),
        "nodes": lambda it: all(WORD.fullmatch(word) for word in it) and len(set(it)) == len(it),
        "companion": lambda it: it == "" or bool(UUID.fullmatch(it)),
        "gpus_per_node": lambda it: type(it) is int and 0 <= it <= MOST_GPUS,
        "mpi": lambda it: bool(re.fullmatch("[a-z0-9_]{1,20}", it)),
        "slot": lambda it: it == "" or bool(WORD.fullmatch(it)),
        **dict.fromkeys(("kill_on_bad_exit", "report_ends"), lambda it: type(it) is bool),
    }
    request = {"report_ends": False, **request}  # the client of an older image does not send it
    for name, test in fine.items():
        try:
            good = test(request[name])
        except (KeyError, TypeError):
            good = False
        if not good:
            raise Refused("bad", f"The step's {name} cannot be {str(request.get(name))[:80]!r}.")
    return request


def step_nodes(request: Dict[str, Any], available: Dict[str, Any]) -> List[str]:
    """Return the nodes of a step within those of its job."""
    nodes = request["nodes"] or available["nodes"]  # type: List[str]
    strange = [name for name in nodes if name not in available["nodes"]]
    if strange:
        nodes = available["nodes"]
        raise Refused("bad", f"{strange[0]} is no node of job {available['job']}; those are {', '.join(nodes)}.")
    if request["nodes"] and request["ranks"] < len(nodes):
        raise Refused("bad", f"{request['ranks']} ranks cannot be on {len(nodes)} nodes.")
    if request["gpus_per_node"] > available["gpus"]:
        raise Refused("bad", f"The job has {available['gpus']} GPUs on each node, and not {request['gpus_per_node']}.")
    return nodes[: request["ranks"]]


def srun_argv(request: Dict[str, Any], available: Dict[str, Any], nodes: List[str], err: int) -> List[str]:
    """Return the srun command line, without the command of the ranks."""
    return [
        *(f"--jobid={available['job']}", "--nodelist=" + ",".join(nodes), f"--nodes={len(nodes)}"),
        *(f"--ntasks={request['ranks']}", "--distribution=block", "--overcommit", "--overlap", "--mem=0"),
        *("--cpu-bind=none", f"--gres=gpu:{available['gpus']}" if request["gpus_per_node"] else "--gres=none"),
        *(f"--mpi={request['mpi']}", f"--job-name=carme-run-{request['run']}", "--wait=0", "--input=none"),
        *(f"--kill-on-bad-exit={int(request['kill_on_bad_exit'])}", "--disable-status", "--label"),
        *(f"--error=/proc/self/fd/{err}", "--open-mode=append", "-v"),  # so that this program reads srun's own stderr
    ]


class Step:
    """One step; it ends when its client closes the connection.

    Args:
        connection: to the client. fds: the ranks' output and errors. folder: the session's. gpu_file: see choose_gpus.
    """

    def __init__(
        self, connection: socket.socket, request: Dict[str, Any], fds: Tuple[int, int], folder: str, gpu_file: int
    ) -> None:
        self.connection, self.request, self.id, self.ends_at, self.stage = connection, validated(request), "", 0.0, 0
        self.messages = []  # type: List[str]
        available = allocation(job_of(request["companion"]))
        nodes = step_nodes(request, available)
        # A companion has its own document: it may have GPUs where the session has none.
        job_folder = os.path.join(os.path.dirname(folder), request["companion"]) if request["companion"] else folder
        try:
            with open(job_folder + "/data.json", encoding="utf-8") as file:
                refused = json.load(file)["rank"].get("refused", "")
            os.close(os.open(f"/proc/self/fd/{fds[1]}", os.O_WRONLY | os.O_APPEND))  # srun will open it in the same way
        except (OSError, ValueError, KeyError) as error:
            raise Refused("notready", f"The job begins, or ends: its plan is not there ({error}).") from error
        if refused:
            raise Refused("bad", refused)
        token = secrets.token_hex(6)
        self.folder, self.mark, self.rank_prefix = job_folder, f"{job_folder}/step-{token}", f"rank-{token}-"
        os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL, 0o600))
        environment = command_environ()
        for name, variable in (("slot", "CARME_SLOT"), ("report_ends", "CARME_REPORT_ENDS")):
            if self.request[name]:
                environment[variable] = str(self.request[name])
        if request["gpus_per_node"]:
            chosen = choose_gpus(gpu_file, available["job"], nodes, request["gpus_per_node"], available["gpus"])
            environment["CARME_GPUS"] = ",".join(map(str, chosen))
        argv = [find_program("srun"), *srun_argv(request, available, nodes, fds[1])]
        argv += ["/usr/bin/python3", "-IS", job_folder + "/carme-rank", job_folder, token, "--", *request["argv"]]
        self.process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=fds[0],
            stderr=subprocess.PIPE,
            pass_fds=fds[1:],
            start_new_session=True,
            preexec_fn=prepare,
        )
        for fd in fds:
            os.close(fd)

    def run(self, wakeup_fd: int) -> None:
        """Wait until srun has ended, and send its exit status.

        Args:
            wakeup_fd: becomes readable when a child ends, and holds the number of TERM when this process is to end.
        """
        errors = self.process.stderr.fileno()  # type: ignore[union-attr]
        self.send({"started": True})
        watch = selectors.DefaultSelector()
        for file in (self.connection, errors, wakeup_fd):
            watch.register(file, selectors.EVENT_READ)
        text, waiting = b"", b""
        while self.process.poll() is None or errors in watch.get_map():
            for key, _ in watch.select(self.advance_end()):
                if key.fd == errors:
                    piece = os.read(errors, 65536)
                    *lines, text = (text + piece).split(b"\n")
                    for each in lines:
                        self.read_srun_line(each.decode("utf-8", "replace"))
                    if not piece:
                        watch.unregister(errors)
                elif key.fd == wakeup_fd:
                    self.request_signal("KILL" if signal.SIGTERM in os.read(wakeup_fd, 512) else "")
                else:
                    *lines, waiting = (waiting + self.receive(watch)).split(b"\n")
                    for each in lines:
                        self.request_signal(str(json.loads(each.decode())["signal"]))
        self.clean_up()
        code = self.process.returncode
        self.send({"exit": 128 - code if code < 0 else code, "said": self.messages[-20:]})  # as in a shell
        if code and self.id:
            self.cancel_leftover()

    def receive(self, watch: selectors.BaseSelector) -> bytes:
        """Return what the client has sent; a closed connection ends the step."""
        piece = b""
        with contextlib.suppress(OSError):
            piece = self.connection.recv(4096)
        if not piece:
            watch.unregister(self.connection)
            self.request_signal("KILL")
        return piece

    def request_signal(self, name: str) -> None:
        """Do what a signal request asks for."""
        if name == "KILL" and not self.ends_at:
            self.ends_at = time.monotonic()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.mark)
        elif name in SIGNALS and not self.ends_at:
            self.process.send_signal(SIGNALS[name])
        elif name == "TERM":
            self.cancel("--signal=TERM")

    def advance_end(self) -> float:
        """Continue to end the step; return the seconds until the next call."""
        if not self.ends_at or self.process.poll() is not None:
            return 1.0 if self.process.poll() is None else 0.05
        passed = time.monotonic() - self.ends_at
        first = 0.0 if self.id else SRUN_TERM_AFTER  # srun would kill ranks whose containers start, so a part may stay
        if self.stage < 4 and passed >= (first, SRUN_TERM_AFTER, CANCEL_AFTER, SRUN_KILL_AFTER)[self.stage]:
            if self.stage == 0:
                self.cancel("--signal=TERM")
            elif self.stage == 1:
                self.process.terminate()
            elif self.stage == 2:
                self.cancel("--signal=KILL")
            else:
                self.process.kill()
            self.stage += 1
        return 0.05

    def cancel(self, *options: str) -> None:
        """Run scancel for the step without waiting for it."""
        if self.id:
            argv = [find_program("scancel"), *options, self.id]
            subprocess.Popen(argv, env=command_environ(), stdin=subprocess.DEVNULL, preexec_fn=prepare)

    def read_srun_line(self, line: str) -> None:
        """Process a line of srun's own output."""
        if not self.id and LAUNCHING.search(line):
            self.id = LAUNCHING.findall(line)[0]
            self.send({"step": self.id})
        if ERROR_LINE.match(line) and not (EXPECTED_LINE if self.ends_at else USELESS_LINE).match(line):
            self.messages.append(line[:500])
            self.send({"line": line[:500]})

    def send(self, what: Dict[str, Any]) -> None:
        """Send a message to the client, which may be gone."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(what).encode() + b"\n")

    def clean_up(self) -> None:
        """Remove the mark and the folders that killed ranks left."""
        for name in os.listdir(self.folder):
            if name.startswith(self.rank_prefix):
                shutil.rmtree(self.folder + "/" + name, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.mark)

    def cancel_leftover(self) -> None:
        """End the step where srun left it running, as a srun does that failed after it had created the step."""
        with contextlib.suppress(Refused):
            if self.id in run_command("squeue", "-h", "--steps=" + self.id, "-o", "%i").split():
                run_command("scancel", "--signal=KILL", self.id)


def prepare() -> None:
    """In the child: reset signal handlers, and end with the parent."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()


def end_with_parent() -> None:
    """Have the kernel send TERM to this process when its parent dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
