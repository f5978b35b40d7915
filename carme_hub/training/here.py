"""The interface of training code to its run: its rank, progress, time limit and folders.

It also works without a run; then there is one rank, and reports go nowhere::

    from carme_hub.training import here

    for step, batch in enumerate(loader):
        loss = train(batch.to(here.device()))
        here.step(step, total=len(loader), samples=len(batch), loss=loss)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carme_hub.training.rank import devices as _devices
from carme_hub.training.rank import thread_exit
from carme_hub.training.rank.deadline import DEADLINE
from carme_hub.training.rank.output.parameters import log_params as log_params
from carme_hub.training.rank.progress import PROGRESS

if TYPE_CHECKING:
    #: The number of this rank, and the number of ranks; both change while an elastic run goes on.
    rank: int
    size: int
    #: The number of this rank on its node, and the number of ranks there; the node's name.
    local_rank: int
    local_size: int
    node: str
    #: Name of the run, "" without one; and its folder for TensorBoard events.
    run: str
    logdir: str

#: File in a run's folder: the code was told that its time is nearly over.
OUT_OF_TIME = "out-of-time"
_NUMBERS = {"rank": ("CARME_RANK", 0), "size": ("CARME_SIZE", 1), "local_rank": ("CARME_LOCAL_RANK", 0)}
_NUMBERS["local_size"] = ("CARME_LOCAL_SIZE", 1)
thread_exit.install()  # also for code that trains alone


def __getattr__(name: str) -> Any:
    """Return an attribute that may change while the code runs."""
    if name in _NUMBERS:
        variable, alone = _NUMBERS[name]
        return int(os.environ.get(variable, alone))
    if name == "node":
        return os.environ.get("CARME_NODE") or os.uname().nodename
    if name == "run":
        return os.environ.get("CARME_RUN", "")
    if name == "logdir":
        return os.environ.get("CARME_LOGDIR") or str(Path("tb").absolute())
    raise AttributeError(f"carme_hub.training.here has no {name}")


def device() -> str:
    """Return this rank's device for torch: the first of its GPUs, such as "cuda:1", or "cpu"."""
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return f"cuda:{(_devices.own_devices() or [0])[0]}"
    return "cpu"


def step(step: int, total: int | None = None, samples: int = 0, **scalars: Any) -> None:
    """Report a finished step, for the progress bar, the rate, the scalars and TensorBoard.

    Args:
        step: its number, counted from 0 or 1. total: number of all steps, where it is known.
        samples: of this step in this rank. scalars: measured numbers, such as ``loss=0.3``.
    """
    PROGRESS.step(step, total, samples, scalars)


def scratch() -> Path:
    """Return a folder of this run on the node's own disk or memory, where the site names one (``CARME_SCRATCH``).

    All ranks of a node share it then. Otherwise it is in the rank's own ``/tmp``, and is deleted with it.
    """
    top = os.environ.get("CARME_SCRATCH") or tempfile.gettempdir()
    slot = os.environ.get("CARME_SLOT", "")  # r4: the ranks of the run's other job, which may be here too, count anew
    part = f"-{slot}" if slot.startswith("r") else ""
    path = Path(top) / f"carme-{os.getuid()}-{os.environ.get('CARME_RUN') or 'alone'}{part}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not path.is_dir() or path.is_symlink() or found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else. Name another folder in CARME_SCRATCH.")
    return path


def time_left() -> float:
    """Return the seconds until this run must have ended; ``math.inf`` where that is unknown."""
    return DEADLINE.left()


def on_time_limit(callback: Callable[[], None], before: float = 120) -> None:
    """Call a function once, ``before`` seconds before the end, for example to write a checkpoint.

    It is called between two lines of the main thread, also where Slurm sends SIGUSR1 before the end. It should be
    short, or set a variable that the training checks. Where the end changes, the time of the call changes too.
    """
    called = threading.Event()

    def call(*_: Any) -> None:
        if not called.is_set():
            called.set()
            if folder := os.environ.get("CARME_RUN_FOLDER"):
                with contextlib.suppress(OSError):  # a full disk is no reason to skip the callback
                    (Path(folder) / OUT_OF_TIME).touch()
            callback()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, call)
        # SIGUSR1 must not kill code that stopped in time: Python removes its signal handlers before it ends.
        atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        DEADLINE.before(before, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    else:
        DEADLINE.before(before, call)
