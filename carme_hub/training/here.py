"""What code that trains may ask and say.

It works the same alone: then there is one rank, and nobody listens::

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

from carme_hub.training.rank import thread_exit
from carme_hub.training.rank.deadline import DEADLINE
from carme_hub.training.rank.progress import PROGRESS

if TYPE_CHECKING:
    #: Number of this rank, and of all; an elastic run changes them while it runs.
    rank: int
    size: int
    #: Number of this rank on its node, and of those there; the node's name.
    local_rank: int
    local_size: int
    node: str
    #: Name of the run, "" alone; and a folder for events of TensorBoard.
    run: str
    logdir: str

#: File of a run's folder: its code was told that the time is nearly over.
OUT_OF_TIME = "out-of-time"
_NUMBERS = {"rank": ("CARME_RANK", 0), "size": ("CARME_SIZE", 1), "local_rank": ("CARME_LOCAL_RANK", 0)}
_NUMBERS["local_size"] = ("CARME_LOCAL_SIZE", 1)
thread_exit.install()  # also for code that trains alone


def __getattr__(name: str) -> Any:
    """Return what may change while the code runs."""
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
    """Return the device of this rank for torch: "cuda:0", the first of those it has, or "cpu"."""
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return "cuda:0"
    return "cpu"


def step(step: int, total: int | None = None, samples: int = 0, **scalars: Any) -> None:
    """Say that a step is done, for the progress bar, the rate, the scalars and TensorBoard.

    Args:
        step: its number, from 0 or 1 as you like. total: of all steps, where it is known.
        samples: of this step, in this rank. scalars: numbers that were measured, such as ``loss=0.3``.
    """
    PROGRESS.step(step, total, samples, scalars)


def scratch() -> Path:
    """Return a folder of this run on this node's own disk or memory, where a site names one (``CARME_SCRATCH``).

    All ranks of a node share it then. Without one it is in the rank's own ``/tmp``, and gone with it.
    """
    top = os.environ.get("CARME_SCRATCH") or tempfile.gettempdir()
    path = Path(top) / f"carme-{os.getuid()}-{os.environ.get('CARME_RUN') or 'alone'}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not path.is_dir() or path.is_symlink() or found.st_uid != os.getuid():
        raise PermissionError(f"{path} is somebody else's. Name another folder in CARME_SCRATCH.")
    return path


def time_left() -> float:
    """Return the seconds until this run has to have ended; ``math.inf`` where nobody knows."""
    return DEADLINE.left()


def on_time_limit(callback: Callable[[], None], before: float = 120) -> None:
    """Have something called once, ``before`` seconds before the end; a good place to write a checkpoint.

    It is called between two lines of the main thread, also where Slurm sends SIGUSR1 before the end. It should be
    short, or set a variable that the training looks at. Where the end is moved in between, so is the call.
    """
    called = threading.Event()

    def call(*_: Any) -> None:
        if not called.is_set():
            called.set()
            if folder := os.environ.get("CARME_RUN_FOLDER"):
                with contextlib.suppress(OSError):  # a full disk; the checkpoint is to be tried all the same
                    (Path(folder) / OUT_OF_TIME).touch()
            callback()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, call)
        # Slurm's own signal is not to end what has stopped in time: Python gives up its handlers before it ends.
        atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        DEADLINE.before(before, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    else:
        DEADLINE.before(before, call)
