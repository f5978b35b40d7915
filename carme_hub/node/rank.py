#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, PTH102, PTH116, PTH123, PTH208, S606, T201
"""carme-rank: one task of a Slurm step. It becomes one rank of a run in the session's container on this node.

``carme-rank FOLDER TOKEN -- COMMAND…``: FOLDER is the folder of the session or companion, whose data document has the
plan as ``rank``. The command replaces the plan's word ``@CARME_ARGV@``; TOKEN and the task's number replace
``@CARME_RANK@`` in paths. The batch script and its supervisor are in the folder as ``carme-launch`` and
``carme-supervise``. Standard library only, Python 3.6 or later.

Slurm sends each signal to all processes of a step (proctrack/cgroup and linuxproc), so to the rank itself too, and this
program does not forward it. TERM asks for the end: the rank has the grace time, then the container is killed.

The ranks of a step on one node share a folder as their /dev/shm. The last of them removes it. Where killed ranks have
left such folders, the next rank on the node removes them.

On each node of a job but its first, where the batch script's own program does it, the first rank starts the program
that measures what the job uses (carme-report), once it has run for a while.

As soon as the command has ended, the last line on the error output says how, for the conductor of the run (END_MARK),
where that has asked for it: a conductor of an older image would take the line for output.

Inside the container the same file runs as ``python3 carme-rank --become COMMAND…``: it resets the signal handlers and
replaces itself by the command, because the runtime had to ignore signals in order to outlive them.
"""

import contextlib
import fcntl
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import time
from typing import Any, Dict, List, MutableMapping, NoReturn

BAD_DATA = 70
#: Seconds between TERM and the end; then 2 s are left to clean up before Slurm kills the rank.
GRACE, MARK_INTERVAL = 1.5, 1.0
ARGV, RANK, STEP = "@CARME_ARGV@", "@CARME_RANK@", "@CARME_STEP@"
#: Variables that pass besides the plan's own: those of Slurm's MPI plugins (srun(1), --mpi), and those of a run.
PREFIXES = ("PMI_", "PMI2_", "PMIX_", "SLURM_PMI", "CARME_SLOT")
#: For MPI in a container: PMIx keeps shared data in slurmd's folder, which the container lacks; "hash" makes PMIx send
#: the data. Processes in different user namespaces may not copy each other's memory (process_vm_readv(2)).
MPI = {"PMIX_MCA_gds": "hash", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
GPU_NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
PR_SET_CHILD_SUBREAPER = 36
#: The last line of a rank's error output, for the conductor of its run: the status, and what its memory cgroup says.
#: Slurm reports the end of a task later, and after those of ranks that only lost their connection to it.
END_MARK = "\x1e[carme-rank] "
#: Seconds after which a rank begins to have its node measured; short runs are not.
REPORT_AFTER = 15.0
#: A smaller pid is one of a new pid namespace; and the most pids that a rank skips in it.
FIRST_PIDS, MOST_PIDS_SKIPPED = 16, 64


def load(folder: str, name: str) -> Any:
    """Load a program of the session folder as a module; it is the same text that runs the session."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), folder + "/" + name)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def select_gpus(environ: MutableMapping[str, str]) -> None:
    """Keep only the GPUs that the step uses: Slurm gives every step all GPUs of the job, since steps overlap."""
    chosen = [int(number) for number in environ.pop("CARME_GPUS", "").split(",") if number]
    for name in GPU_NAMES:
        if chosen and name in environ:
            ids = environ[name].split(",")
            environ[name] = ",".join(ids[number] for number in chosen if number < len(ids))


def substitute(value: Any, argv: List[str], name: str) -> Any:
    """Return a part of the plan with the placeholders replaced for this rank."""
    if isinstance(value, str):
        return value.replace(RANK, name).replace(STEP, name.partition("-")[0])
    if isinstance(value, dict):
        return {key: substitute(each, argv, name) for key, each in value.items()}
    if isinstance(value, list):
        found = []  # type: List[Any]
        for each in value:
            found += argv if each == ARGV else [substitute(each, argv, name)]
        return found
    return value


def rank_plan(document: Dict[str, Any], argv: List[str], name: str) -> Dict[str, Any]:
    """Return the plan of this rank."""
    plan = dict(substitute(document["rank"]["plan"], argv, name))
    plan["grace"] = GRACE
    plan["environ"] = {**(MPI if "PMIX_RANK" in os.environ else {}), **plan.get("environ", {})}
    if GPU_NAMES[0] not in os.environ:  # a step without GPUs, also where Slurm does not confine devices
        plan["environ"][GPU_NAMES[0]] = ""
    plan["pass_env"] = [*plan.get("pass_env", ()), *(each for each in os.environ if each.startswith(PREFIXES))]
    return plan


def become(argv: List[str]) -> NoReturn:
    """Inside the container: reset the signal handlers and replace this process by the command."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP cannot be changed
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if os.getpid() < FIRST_PIDS:
        fork_unique_pid(pid_offset(os.environ))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        say(f"{argv[0]} cannot be run in this container: {error.strerror}")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def pid_offset(environ: MutableMapping[str, str]) -> int:
    """Return how many pids this rank is to skip: its number, that of its elastic worker, or its number on the node.

    Each skipped pid costs a fork, so in a large run only the ranks of one node differ.
    """
    worker = re.match(r"w([0-9]+)-", environ.get("CARME_SLOT", ""))
    if worker:
        return min(int(worker.group(1)), MOST_PIDS_SKIPPED)
    part = re.match(r"r([0-9]+)$", environ.get("CARME_SLOT", ""))
    first = int(part.group(1)) if part else 0  # the ranks of a run's other step may be on this node too
    small = first + int(environ.get("SLURM_NTASKS", "1")) <= MOST_PIDS_SKIPPED
    return first + int(environ.get("SLURM_PROCID", "0")) if small else int(environ.get("SLURM_LOCALID", "0"))


def fork_unique_pid(local: int) -> None:
    """Continue in the ``local``-th child process, so that the ranks of this node have different pids.

    A container with a pid namespace counts pids from 1, so all ranks would have the same pid. Open MPI takes shared
    memory of a process with its own pid for its own, and crashes (opal/mca/shmem/mmap, segment_attach). TensorBoard's
    SummaryWriter and torch's profiler name their files by host and pid, so ranks would write the same files.
    """
    for left in reversed(range(local)):
        child = os.fork()
        if not child and not left:
            return
        if not child:
            os._exit(0)
        if not left:  # signals reach all processes of a step; the rank acts on them
            for number in set(range(1, signal.NSIG)) - {signal.SIGCHLD}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_IGN)
        _, status = os.waitpid(child, 0)
        if not left:
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def main() -> int:
    """Run one rank and return its status."""
    if sys.argv[1] == "--become":
        become(sys.argv[2:])
    folder, token = sys.argv[1:3]
    argv = ["python3", "-IS", folder + "/carme-rank", "--become", *sys.argv[sys.argv.index("--") + 1 :]]
    name = "{}-{}".format(token, os.environ["SLURM_PROCID"])
    os.umask(0o077)
    os.environ["CARME_JOB_DEVICES"] = os.environ.get(GPU_NAMES[0], "")  # for carme-report
    select_gpus(os.environ)
    try:
        launch, supervise, memory = (load(folder, "carme-" + name) for name in ("launch", "supervise", "memory"))
        with open(folder + "/data.json", encoding="utf-8") as file:
            document = json.load(file)
        data = {key: document[key] for key in ("binds", "bind_roots", "session", "stage") if key in document}
        data["plan"] = rank_plan(document, argv, name)
    except (OSError, ValueError, LookupError, TypeError, SyntaxError) as error:
        # The text of a parse error may quote the document, and so a secret.
        print(f"[carme-rank] the session's plan for ranks cannot be used ({type(error).__name__})", file=sys.stderr)
        report_end(BAD_DATA, started=False)
        return BAD_DATA
    launch.say = supervise.say = say
    shm = substitute(document["rank"].get("shm", ""), [], name)
    measured = "activity" in document and measures(os.environ)
    return run(launch, supervise, memory, data, shm, folder, name, measured=measured)


def measures(environ: MutableMapping[str, str]) -> bool:
    """Return whether this is the rank that has its node measured: the step's first on another node than the job's."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", environ.get("SLURM_JOB_NODELIST", ""))
    # "node[03-05,7]" begins with node03.
    host = re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", first.group()) if first else ""
    own = environ.get("SLURMD_NODENAME", "")
    return environ.get("SLURM_LOCALID") == "0" and bool(own) and own != host


def run(
    launch: Any,
    supervise: Any,
    memory: Any,
    data: Dict[str, Any],
    shm: str,
    folder: str,
    name: str,
    *,
    measured: bool = False,
) -> int:
    """Run the plan under the batch script's supervisor, with a temporary folder of its own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, supervise.BLOCKED)
    supervise.LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own, mark = folder + "/rank-" + name, folder + "/step-" + name.partition("-")[0]
    if is_removed(mark):  # the step is to end already: Slurm could kill this process while the container starts
        return 128 + signal.SIGTERM

    class Supervisor(supervise.Supervisor):
        """Supervisor of a rank: Slurm signals every process of a step, and a removed mark ends the rank."""

        grace_ends: float
        memory: Any

        def __init__(self, plan: Dict[str, Any]) -> None:
            # More ranks check less often, for the sake of the file server.
            interval = max(MARK_INTERVAL, int(os.environ.get("SLURM_NTASKS", "1")) / 50)
            reporter = (sys.executable, "-IS", folder + "/carme-report", folder, own) if measured else ()
            super().__init__(plan, self.check_mark, interval, reporter=reporter)
            self.report_at = time.monotonic() + REPORT_AFTER

        def start_reporter(self) -> None:
            """Start it later than the batch script does."""
            if time.monotonic() >= self.report_at:
                super().start_reporter()

        def check_mark(self) -> None:
            """End the rank where the mark is gone: without its controller Slurm cannot end it."""
            if not self.grace_ends and is_removed(mark):
                super().forward(signal.SIGTERM)

        def forward(self, number: int) -> None:
            """Start the grace time at TERM; Slurm has sent the signal to the rank already."""
            if number == signal.SIGTERM and not self.grace_ends:
                self.grace_ends = time.monotonic() + GRACE

    killed_before, reported = memory.memory_of_task()[0], []  # type: int, List[int]
    supervisor = Supervisor(data["plan"])

    def on_exit(status: int) -> int:
        killed, limit = memory.memory_of_task()
        ours = supervisor.memory
        out_of_memory = status != 0 and (killed > killed_before or bool(ours and ours.killed))
        report_end(status, out_of_memory=out_of_memory, memory=ours.limit if ours and not limit else limit)
        reported.append(status)
        return status

    def not_started(status: int, message: str) -> int:
        say(message)
        if not reported:
            report_end(status, started=False)
        return status

    shared = -1
    try:
        shared = open_shared_folder(shm) if shm else -1
        os.mkdir(own, 0o700)
        if "stage" in data:
            load(folder, "carme-staging").join(data, launch.Failed)
        launch.check_node(data)
        return int(supervise.run(supervisor, on_exit))
    except launch.Failed as error:
        return not_started(int(error.args[0]), error.args[1])
    except supervise.CannotStart as error:
        return not_started(int(launch.NO_RUNTIME), str(error))
    except OSError as error:
        return not_started(BAD_DATA, f"{error.filename or own}: {error.strerror}")
    finally:
        shutil.rmtree(own, ignore_errors=True)
        if shared >= 0:
            remove_if_last(shm, shared)


def report_end(status: int, *, started: bool = True, out_of_memory: bool = False, memory: int = 0) -> None:
    """Write the line that tells the conductor how the command ended.

    Args:
        started: whether the command was started at all. out_of_memory: whether it was killed for lack of memory.
        memory: the most bytes that its job may use here; 0 = unknown.
    """
    if "CARME_REPORT_ENDS" not in os.environ:
        return
    end = {"status": status, "started": started, "out_of_memory": out_of_memory, "memory_mib": memory >> 20}
    with contextlib.suppress(OSError):
        # The command may have left an unfinished line, which the conductor separates again.
        os.write(2, (END_MARK + json.dumps(end) + "\n").encode())


def is_removed(mark: str) -> bool:
    """Return whether a file has been removed. It is opened, since NFS may cache a stat for a minute."""
    try:
        os.close(os.open(mark, os.O_RDONLY))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # unknown
    return False


def open_shared_folder(shm: str) -> int:
    """Open the folder that the ranks of this node share, creating it; remove the folders of ended ranks."""
    top, last = os.path.split(shm)
    for name in os.listdir(top):
        if re.fullmatch("carme-[0-9a-f]{12}", name) and name != last:
            with contextlib.suppress(OSError):
                remove_if_last(top + "/" + name, open_own_folder(top + "/" + name))
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(shm, 0o700)
        with contextlib.suppress(FileNotFoundError):  # another rank removed it as it ended
            opened = open_own_folder(shm)
            fcntl.flock(opened, fcntl.LOCK_SH)
            if os.path.samestat(os.stat(shm), os.fstat(opened)):
                return opened


def open_own_folder(folder: str) -> int:
    """Open a folder; raise PermissionError where the user does not own it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(opened).st_uid != os.geteuid():
        os.close(opened)
        raise PermissionError(1, "belongs to somebody else", folder)
    return opened


def remove_if_last(folder: str, opened: int) -> None:
    """Remove a shared folder unless another rank uses it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    os.close(opened)


def say(message: str) -> None:
    """Write one line to the rank's error output."""
    sys.stderr.write(f"[carme] {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
