#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, PTH102, PTH116, PTH123, PTH208, S606, T201
"""carme-rank: one task of a Slurm step, which becomes one rank of a run in the session's container on this node.

``carme-rank FOLDER TOKEN -- COMMAND…``: the plan stands as ``rank`` in the data document of the session (or companion)
whose folder it is; the command takes the place of its one word ``@CARME_ARGV@``, and TOKEN with the task's number that
of ``@CARME_RANK@``, in paths of what the container keeps beside. The batch script and its supervisor lie as
``carme-launch`` and ``carme-supervise`` in the folder. Standard library only, Python 3.6 or later.

Slurm hands each signal to all processes of a step (proctrack/cgroup and linuxproc), and so to the rank itself: it is
not handed on once more. TERM asks for the end: the rank has the grace time, then the container is killed.

The ranks of a step on one node share a folder as their /dev/shm, which the last of them removes; what ranks that were
killed have left of such folders, the next rank on the node removes.

Inside the container the same file, as ``python3 carme-rank --become COMMAND…``, gives the command the signal state that
it expects before it becomes it: the runtime had to ignore signals in order to outlive them.
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
#: Seconds between TERM and the end; what then has to be cleaned up has 2 s before Slurm kills it.
GRACE, LOOK_EVERY = 1.5, 1.0
ARGV, RANK, STEP = "@CARME_ARGV@", "@CARME_RANK@", "@CARME_STEP@"
#: Beside the plan's own names: what an MPI plugin of Slurm tells a task (srun(1), --mpi), and what a run does.
PREFIXES = ("PMI_", "PMI2_", "PMIX_", "SLURM_PMI", "CARME_SLOT")
#: For MPI in a container: PMIx keeps what ranks share in slurmd's own folder, which is not there, unless it is told to
#: send it; and processes in different user namespaces may not copy from each other's memory (process_vm_readv(2)).
MPI = {"PMIX_MCA_gds": "hash", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
GPU_NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
PR_SET_CHILD_SUBREAPER = 36


def load(folder: str, name: str) -> Any:
    """Return a program of the session folder as a module; it is the very text that runs the session."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), folder + "/" + name)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def narrow(environ: MutableMapping[str, str]) -> None:
    """Leave the GPUs that the step is to use: Slurm gives every step all of the job's, since steps overlap."""
    chosen = [int(number) for number in environ.pop("CARME_GPUS", "").split(",") if number]
    for name in GPU_NAMES:
        if chosen and name in environ:
            ids = environ[name].split(",")
            environ[name] = ",".join(ids[number] for number in chosen if number < len(ids))


def put(value: Any, argv: List[str], name: str) -> Any:
    """Return a part of the plan with this rank's words in it."""
    if isinstance(value, str):
        return value.replace(RANK, name).replace(STEP, name.partition("-")[0])
    if isinstance(value, dict):
        return {key: put(each, argv, name) for key, each in value.items()}
    if isinstance(value, list):
        found = []  # type: List[Any]
        for each in value:
            found += argv if each == ARGV else [put(each, argv, name)]
        return found
    return value


def plan_of(document: Dict[str, Any], argv: List[str], name: str) -> Dict[str, Any]:
    """Return the plan of this rank."""
    plan = dict(put(document["rank"]["plan"], argv, name))
    plan["grace"] = GRACE
    plan["environ"] = {**(MPI if "PMIX_RANK" in os.environ else {}), **plan.get("environ", {})}
    if GPU_NAMES[0] not in os.environ:  # a step without GPUs; where devices are not confined, none is not all
        plan["environ"][GPU_NAMES[0]] = ""
    plan["pass_env"] = [*plan.get("pass_env", ()), *(each for each in os.environ if each.startswith(PREFIXES))]
    return plan


def become(argv: List[str]) -> NoReturn:
    """Inside the container: have signals do what they do by default, and become the command."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):  # those that are fixed
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if "PMIX_RANK" in os.environ:
        number_apart(int(os.environ.get("SLURM_LOCALID", "0")))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        say(f"{argv[0]} cannot be run in this container: {error.strerror}")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def number_apart(local: int) -> None:
    """Go on in a process whose number no other rank of this node has: the ``local``-th one after this.

    Each container counts its processes anew, so all ranks would have the same. Open MPI takes shared memory that was
    made by a process of its own number for its own, and crashes (opal/mca/shmem/mmap, segment_attach).
    """
    for left in reversed(range(local)):
        child = os.fork()
        if not child and not left:
            return
        if not child:
            os._exit(0)
        if not left:  # signals go to all processes of a step, and it is the rank that ends by them
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
    narrow(os.environ)
    try:
        launch, supervise = load(folder, "carme-launch"), load(folder, "carme-supervise")
        with open(folder + "/data.json", encoding="utf-8") as file:
            document = json.load(file)
        data = {key: document[key] for key in ("binds", "bind_roots") if key in document}
        data["plan"] = plan_of(document, argv, name)
    except (OSError, ValueError, LookupError, TypeError, SyntaxError) as error:
        # The text of a parse error may quote the document, and so a secret.
        print(f"[carme-rank] the session's plan for ranks cannot be used ({type(error).__name__})", file=sys.stderr)
        return BAD_DATA
    launch.say = supervise.say = say
    shm = put(document["rank"].get("shm", ""), [], name)
    return run(launch, supervise, data, shm, folder, name)


def run(launch: Any, supervise: Any, data: Dict[str, Any], shm: str, folder: str, name: str) -> int:
    """Run the plan under the batch script's supervisor, with a folder that is gone afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, supervise.BLOCKED)
    supervise.LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own, mark = folder + "/rank-" + name, folder + "/step-" + name.partition("-")[0]

    class Supervisor(supervise.Supervisor):
        """Knows that Slurm signals all processes of a step, and looks whether the step shall live."""

        ends_at: float

        def __init__(self, plan: Dict[str, Any]) -> None:
            every = max(LOOK_EVERY, int(os.environ.get("SLURM_NTASKS", "1")) / 50)  # spare the home's server
            super().__init__(plan, self.look_at_mark, every)

        def look_at_mark(self) -> None:
            """Ask for the end where the mark has gone: Slurm's controller may be away, and cannot do it."""
            if not self.ends_at and gone(mark):
                super().forward(signal.SIGTERM)

        def forward(self, number: int) -> None:
            """Start the grace time at TERM; the rank itself was told already."""
            if number == signal.SIGTERM and not self.ends_at:
                self.ends_at = time.monotonic() + GRACE

    shared = -1
    try:
        shared = join(shm) if shm else -1
        os.mkdir(own, 0o700)
        launch.check_node(data)
        return int(supervise.run(Supervisor(data["plan"])))
    except launch.Failed as error:
        say(error.args[1])
        return int(error.args[0])
    except supervise.CannotStart as error:
        say(str(error))
        return int(launch.NO_RUNTIME)
    except OSError as error:
        say(f"{error.filename or own}: {error.strerror}")
        return BAD_DATA
    finally:
        shutil.rmtree(own, ignore_errors=True)
        if shared >= 0:
            remove_if_last(shm, shared)


def gone(mark: str) -> bool:
    """Return whether a file has been removed; it is opened, since NFS may know for a minute only what was."""
    try:
        os.close(os.open(mark, os.O_RDONLY))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # nobody knows
    return False


def join(shm: str) -> int:
    """Make the folder that the ranks of this node share, or open it, and return it; remove those of ended ranks."""
    top, last = os.path.split(shm)
    for name in os.listdir(top):
        if re.fullmatch("carme-[0-9a-f]{12}", name) and name != last:
            with contextlib.suppress(OSError):
                remove_if_last(top + "/" + name, open_ours(top + "/" + name))
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(shm, 0o700)
        with contextlib.suppress(FileNotFoundError):  # a rank that has ended just now removed it
            opened = open_ours(shm)
            fcntl.flock(opened, fcntl.LOCK_SH)
            if os.path.samestat(os.stat(shm), os.fstat(opened)):
                return opened


def open_ours(folder: str) -> int:
    """Open a folder that is ours."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(opened).st_uid != os.geteuid():
        os.close(opened)
        raise PermissionError(1, "belongs to somebody else", folder)
    return opened


def remove_if_last(folder: str, opened: int) -> None:
    """Remove a shared folder unless another rank has it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    os.close(opened)


def say(message: str) -> None:
    """Write one line into what the rank writes."""
    sys.stderr.write(f"[carme] {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
