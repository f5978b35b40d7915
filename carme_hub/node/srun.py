#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP022, UP035, PTH108, PTH110, PTH118, PTH120, PTH123, PTH208
"""carme-srun: what carme-steps knows of Slurm: what a job has, and one step from its srun to its end.

Of what is asked, only small words that are checked here become options of srun; the words of a rank's command reach
nothing but the container. Standard library only, Python 3.6 or later.

srun(1): TERM makes srun kill the step at once; INT (with --disable-status) and USR1 are handed to all processes of it.
A step gets all GPUs of the job on its nodes, and its ranks are told which are theirs (CARME_GPUS): where steps overlap
Slurm would give every one of them the first GPUs. A step has a mark in the session folder, ``step-TOKEN``; where that
has gone ranks end by themselves, since without Slurm's controller neither srun nor scancel can end them.
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
#: Seconds after the wish to end a step: TERM to its processes; srun kills them; Slurm is told to; srun is killed.
SOFT, HARD, LAST, GONE = 0.0, 3.5, 4.2, 4.7
COMMAND_SECONDS, PR_SET_PDEATHSIG = 20.0, 1
#: Where srun is on clusters that do not put it into PATH.
USUAL = "/usr/bin:/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin:/cm/shared/apps/slurm/current/bin"
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LAUNCHING = re.compile(r"launching StepId=([0-9]+\.[0-9]+)")
SIGNALS = {"INT": signal.SIGINT, "USR1": signal.SIGUSR1}
#: Of what srun says with -v, that which somebody may want to know: why there is no step, and which task failed.
NEWS = re.compile(r"srun: (error|fatal|Warning): ")
NO_NEWS = re.compile(r"srun: (error: \S+ tasks? \S+ (Terminated|Killed)|Warning: can't run )")
LIBC = ctypes.CDLL(None)


class Refused(Exception):
    """The asker is told the sentence; ``kind`` says what can be done: "bad", "notready", "slurm"."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


# -- what Slurm says of a job -----------------------------------------------------------------------------------------


def environ() -> Dict[str, str]:
    """Return what Slurm's commands need of the job's environment; the rest of it would steer srun (srun(1), INPUT)."""
    own = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "SLURM_CONF", "TZ") if name in os.environ}
    return {"PATH": os.environ.get("PATH", os.defpath) + ":" + USUAL, "LANG": "C.UTF-8", **own}


def program(name: str) -> str:
    """Return the path of one of Slurm's commands."""
    found = shutil.which(name, path=environ()["PATH"])
    if found is None:
        raise Refused("slurm", f"{name} is not on this node, so no ranks can be started: tell the administrator.")
    return found


def ask(*argv: str) -> str:
    """Return what one of Slurm's commands prints."""
    try:
        done = subprocess.run(
            [program(argv[0]), *argv[1:]],
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused("slurm", "Slurm does not answer. Try again in a minute.") from error
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"])[-1]
        raise Refused("slurm", f"Slurm does not say what the job has: {said[:300]}")
    return done.stdout.decode("utf-8", "replace")


def job_of(companion: str) -> int:
    """Return the job of a companion, of the session itself for ""."""
    if not companion:
        return int(os.environ["SLURM_JOB_ID"])
    if not UUID.fullmatch(companion):
        raise Refused("bad", f"{companion[:60]!r} is no companion's id.")
    found = ask("squeue", "-h", "-u", str(os.geteuid()), "-n", "carme-" + companion, "-o", "%A %T").splitlines()
    jobs = dict(line.split() for line in found if line.strip())
    running = [int(job) for job, state in jobs.items() if state == "RUNNING"]
    if not running:
        state = next(iter(jobs.values()), "")
        said = f"is {state.lower()}, and not running" if state else "has ended, or never came to Slurm"
        raise Refused("notready", f"The companion {companion} {said}.")
    return max(running)


def allocation(job: int) -> Dict[str, Any]:
    """Return what a job has: nodes, and on each of them at least so many CPUs and GPUs."""
    text = ask("scontrol", "-d", "-o", "show", "job", str(job))
    words = dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", text))
    if words.get("JobState") != "RUNNING":
        raise Refused("notready", f"Job {job} is {words.get('JobState', 'gone').lower()}, and not running.")
    cpus, gpus, kinds, ends = [], [], set(), 0.0
    for ids, gres in re.findall(r"\sNodes=\S+ CPU_IDs=(\S*) Mem=\d+ GRES=(\S*)", text):
        cpus.append(count_of(ids))
        here = re.findall(r"(?:^|,)gpu:(?:([^:,()]+):)?(\d+)", gres)
        gpus.append(sum(int(count) for _, count in here))
        kinds |= {kind for kind, _ in here}
    if words.get("TimeLimit") != "UNLIMITED":  # or Slurm says next year
        with contextlib.suppress(ValueError, OverflowError):
            ends = time.mktime(time.strptime(words.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    return {
        "job": job,
        "nodes": ask("scontrol", "show", "hostnames", words.get("NodeList", "")).split(),
        "cpus": min(cpus or [1]),
        "gpus": min(gpus or [0]),
        "gpu_type": kinds.pop() if len(kinds) == 1 else "",
        "ends": ends,
    }


def count_of(ids: str) -> int:
    """Return how many numbers ``0-3,8`` are."""
    pairs = [part.partition("-") for part in ids.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)


def address(nodes: List[str]) -> str:
    """Return the IPv4 address of this node which the others reach: of a lone node, those of its companions."""
    here, own = os.environ.get("SLURMD_NODENAME", ""), "127.0.0.1"  # enough, where all ranks are on this node
    with contextlib.suppress(OSError):
        own = socket.gethostbyname(node_address(here))
    others = [node for node in nodes if node != here]
    if not others and own.startswith("127."):  # Debian's installer has a machine know itself by that
        with contextlib.suppress(Refused):  # a line for each partition
            others = [node for node in dict.fromkeys(ask("sinfo", "-hrN", "-o", "%N").split()) if node != here]
    for name in others[:3]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((node_address(name), 9))  # nothing is sent: the kernel looks for the way
            return str(way.getsockname()[0])
    return own


def node_address(name: str) -> str:
    """Return what Slurm reaches a node by."""
    found = re.search(r"\sNodeAddr=(\S+)", ask("scontrol", "-o", "show", "node", name))
    return found.group(1) if found else name


def take(shared: int, job: int, nodes: List[str], wanted: int, have: int) -> List[int]:
    """Return which GPUs of each node a step shall use: the same on all, and those that the fewest steps use.

    Args:
        shared: file of all processes of carme-steps, in which each that lives says what it uses.
    """
    fcntl.lockf(shared, fcntl.LOCK_EX)
    try:
        said = json.loads(os.pread(shared, 1 << 20, 0).decode() or "[]")
        living = [each for each in said if each["pid"] != os.getpid() and os.path.exists(f"/proc/{each['pid']}")]
        used = [0] * have
        for each in living:
            if each["job"] == job and set(each["nodes"]) & set(nodes):
                for number in each["gpus"]:
                    used[number] += 1
        chosen = sorted(sorted(range(have), key=lambda number: used[number])[:wanted])
        mine = {"pid": os.getpid(), "job": job, "nodes": nodes, "gpus": chosen}
        os.ftruncate(shared, 0)
        os.pwrite(shared, json.dumps([*living, mine]).encode(), 0)
        return chosen
    finally:
        fcntl.lockf(shared, fcntl.LOCK_UN)


# -- one step ---------------------------------------------------------------------------------------------------------


def checked(asked: Dict[str, Any]) -> Dict[str, Any]:
    """Return what is asked for if each word is one that srun may be told."""
    fine: Dict[str, Callable[[Any], bool]] = {
        "run": lambda it: bool(WORD.fullmatch(it)),
        "ranks": lambda it: type(it) is int and 0 < it <= MOST_RANKS,
        "argv": lambda it: isinstance(it, list) and bool(it) and all("\0" not in word for word in it),
        "nodes": lambda it: all(WORD.fullmatch(word) for word in it) and len(set(it)) == len(it),
        "companion": lambda it: it == "" or bool(UUID.fullmatch(it)),
        "gpus_per_node": lambda it: type(it) is int and 0 <= it <= MOST_GPUS,
        "mpi": lambda it: bool(re.fullmatch("[a-z0-9_]{1,20}", it)),
        "slot": lambda it: it == "" or bool(WORD.fullmatch(it)),
        "kill_on_bad_exit": lambda it: type(it) is bool,
    }
    for name, test in fine.items():
        try:
            good = test(asked[name])
        except (KeyError, TypeError):
            good = False
        if not good:
            raise Refused("bad", f"The step's {name} cannot be {str(asked.get(name))[:80]!r}.")
    return asked


def nodes_of(asked: Dict[str, Any], have: Dict[str, Any]) -> List[str]:
    """Return on which nodes a step is, in what its job has."""
    nodes = asked["nodes"] or have["nodes"]  # type: List[str]
    strange = [name for name in nodes if name not in have["nodes"]]
    if strange:
        raise Refused("bad", f"{strange[0]} is no node of job {have['job']}; those are {', '.join(have['nodes'])}.")
    if asked["nodes"] and asked["ranks"] < len(nodes):
        raise Refused("bad", f"{asked['ranks']} ranks cannot be on {len(nodes)} nodes.")
    if asked["gpus_per_node"] > have["gpus"]:
        raise Refused("bad", f"The job has {have['gpus']} GPUs on each node, and not {asked['gpus_per_node']}.")
    return nodes[: asked["ranks"]]


def srun(asked: Dict[str, Any], have: Dict[str, Any], nodes: List[str], err: int) -> List[str]:
    """Return the words of srun in front of the command."""
    return [
        *(f"--jobid={have['job']}", "--nodelist=" + ",".join(nodes), f"--nodes={len(nodes)}"),
        *(f"--ntasks={asked['ranks']}", "--distribution=block", "--overcommit", "--overlap", "--mem=0"),
        *("--cpu-bind=none", f"--gres=gpu:{have['gpus']}" if asked["gpus_per_node"] else "--gres=none"),
        *(f"--mpi={asked['mpi']}", f"--job-name=carme-run-{asked['run']}", "--wait=0", "--input=none"),
        *(f"--kill-on-bad-exit={int(asked['kill_on_bad_exit'])}", "--disable-status", "--label"),
        *(f"--error=/proc/self/fd/{err}", "--open-mode=append", "-v"),  # so that its own stderr is for us
    ]


class Step:
    """One step, as long as somebody is at the other end of the line.

    Args:
        line: to who asks. fds: what takes output and errors of the ranks. folder: of the session.
        shared: see ``take``.
    """

    def __init__(
        self, line: socket.socket, asked: Dict[str, Any], fds: Tuple[int, int], folder: str, shared: int
    ) -> None:
        self.line, self.asked = line, checked(asked)
        self.id, self.said = "", []  # type: str, List[str]
        self.ends_at, self.stage = 0.0, 0
        have = allocation(job_of(asked["companion"]))
        nodes = nodes_of(asked, have)
        # A companion has a document of its own: it may have GPUs where the session has none.
        own = os.path.join(os.path.dirname(folder), asked["companion"]) if asked["companion"] else folder
        try:
            with open(own + "/data.json", encoding="utf-8") as file:
                refused = json.load(file)["rank"].get("refused", "")
            os.close(os.open(f"/proc/self/fd/{fds[1]}", os.O_WRONLY | os.O_APPEND))  # as srun will
        except (OSError, ValueError, KeyError) as error:
            raise Refused("notready", f"The job begins, or ends: its plan is not there ({error}).") from error
        if refused:
            raise Refused("bad", refused)
        token = secrets.token_hex(6)
        self.own, self.mark, self.of_ranks = own, f"{own}/step-{token}", f"rank-{token}-"
        os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL, 0o600))
        environment = environ()
        if asked["slot"]:
            environment["CARME_SLOT"] = asked["slot"]
        if asked["gpus_per_node"]:
            chosen = take(shared, have["job"], nodes, asked["gpus_per_node"], have["gpus"])
            environment["CARME_GPUS"] = ",".join(map(str, chosen))
        argv = [program("srun"), *srun(asked, have, nodes, fds[1])]
        argv += ["/usr/bin/python3", "-IS", own + "/carme-rank", own, token, "--", *asked["argv"]]
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

    def run(self, wakes: int) -> None:
        """Stay until srun has ended, and say how.

        Args:
            wakes: becomes readable when a child ends, with the number of TERM when we shall.
        """
        errors = self.process.stderr.fileno()  # type: ignore[union-attr]
        self.tell({"started": True})
        watch = selectors.DefaultSelector()
        for file in (self.line, errors, wakes):
            watch.register(file, selectors.EVENT_READ)
        text, waiting = b"", b""
        while self.process.poll() is None or errors in watch.get_map():
            for key, _ in watch.select(self.go_on()):
                if key.fd == errors:
                    piece = os.read(errors, 65536)
                    *lines, text = (text + piece).split(b"\n")
                    for each in lines:
                        self.note(each.decode("utf-8", "replace"))
                    if not piece:
                        watch.unregister(errors)
                elif key.fd == wakes:
                    self.wish("KILL" if signal.SIGTERM in os.read(wakes, 512) else "")
                else:
                    *lines, waiting = (waiting + self.hear(watch)).split(b"\n")
                    for each in lines:
                        self.wish(str(json.loads(each.decode())["signal"]))
        self.sweep()
        code = self.process.returncode
        self.tell({"exit": 128 - code if code < 0 else code, "said": self.said[-20:]})  # as a shell says it
        if code and self.id:
            self.make_sure()

    def hear(self, watch: selectors.BaseSelector) -> bytes:
        """Return what the asker says; one who is gone wants the end."""
        piece = b""
        with contextlib.suppress(OSError):
            piece = self.line.recv(4096)
        if not piece:
            watch.unregister(self.line)
            self.wish("KILL")
        return piece

    def wish(self, name: str) -> None:
        """Do what is wished of the step."""
        if name == "KILL" and not self.ends_at:
            self.ends_at = time.monotonic()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.mark)
        elif name in SIGNALS and not self.ends_at:
            self.process.send_signal(SIGNALS[name])
        elif name == "TERM":
            self.cancel("--signal=TERM")

    def go_on(self) -> float:
        """Go on with the end of the step; return for how many seconds there is nothing to do."""
        if not self.ends_at or self.process.poll() is not None:
            return 1.0 if self.process.poll() is None else 0.05
        passed = time.monotonic() - self.ends_at
        if self.stage < 4 and passed >= (SOFT, HARD, LAST, GONE)[self.stage]:
            if self.stage == 0 and self.id:
                self.cancel("--signal=TERM")
            elif self.stage < 2:
                self.process.terminate()
            elif self.stage == 2:
                self.cancel("--signal=KILL")
            else:
                self.process.kill()
            self.stage += 1
        return 0.05

    def cancel(self, *options: str) -> None:
        """Tell Slurm about the end of the step, without waiting for it."""
        if self.id:
            argv = [program("scancel"), *options, self.id]
            subprocess.Popen(argv, env=environ(), stdin=subprocess.DEVNULL, preexec_fn=prepare)

    def note(self, line: str) -> None:
        """Take in a line that srun says of itself."""
        found = LAUNCHING.search(line)
        if found and not self.id:
            self.id = found.group(1)
            self.tell({"step": self.id})
        if NEWS.match(line) and not NO_NEWS.match(line):
            self.said.append(line[:500])

    def tell(self, what: Dict[str, Any]) -> None:
        """Say something to the asker, who may have gone."""
        with contextlib.suppress(OSError):
            self.line.sendall(json.dumps(what).encode() + b"\n")

    def sweep(self) -> None:
        """Remove the mark, and what killed ranks left of their folders."""
        for name in os.listdir(self.own):
            if name.startswith(self.of_ranks):
                shutil.rmtree(self.own + "/" + name, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.mark)

    def make_sure(self) -> None:
        """End the step if srun left it: one that failed after it had asked for a step does."""
        with contextlib.suppress(Refused):
            if self.id in ask("squeue", "-h", "--steps=" + self.id, "-o", "%i").split():
                ask("scancel", "--signal=KILL", self.id)


def prepare() -> None:
    """In the child: a clean signal state, and no life without us."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    live_with_parent()


def live_with_parent() -> None:
    """Have TERM sent to us when our parent dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
