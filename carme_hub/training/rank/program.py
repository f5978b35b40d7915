"""One rank of a run: it finds its place, runs the code, and says how it goes and how it ended.

``python -m carme_hub.training.rank.program FOLDER STEP``. What it is told stands in ``run.json`` of the run's folder,
and where it is in the environment that srun made. Torch and Horovod are imported by the code that is run, never by
this.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import os
import pickle
import signal
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme_hub.training.run import results
from carme_hub.training.run.messages import END, HELLO, ConductorUnreachable, RendezvousClient
from carme_hub.training.run.private_files import keep, write
from carme_hub.training.templates import kernels

from . import garbage, horovod, mpi, network, thread_exit, torch_store
from .heartbeat import Heartbeat
from .numbering import Rank, rank_of

#: Seconds for the last words of a rank: of one that ended well, whose last steps and scalars are to be kept, and of one
#: that failed, which has been told already.
LAST_WORDS, FAILED_WORDS = 15.0, 2.0


class NoGPU(RuntimeError):
    """The job gave this rank fewer GPUs than it was promised."""


@dataclass(frozen=True, slots=True)
class RankConfig:
    """What a rank is told by ``Conductor.tell``: fields that it does not know are left out.

    Attributes:
        folder: of the run. kind: "cell", "script" or "call". path: where modules of the notebook are looked for.
        address, port: of the rendezvous, with its secret. limit: bytes of what is returned.
        start_limit: seconds for all ranks to come.
    """

    folder: Path
    run: str
    kind: str
    ranks: int
    backend: str
    gpus_per_task: int
    address: str
    port: int
    cwd: str
    logdir: str
    limit: int
    start_limit: float
    args: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    script: str = ""

    @classmethod
    def read(cls, folder: Path) -> RankConfig:
        """Return what stands in a run's folder."""
        said = json.loads((folder / "run.json").read_text())
        lists = {name: tuple(said[name]) for name in ("args", "path", "pull")}
        known = {name: said[name] for name in cls.__slots__ if name in said}
        return cls(**{**known, **lists, "folder": folder})

    @property
    def telling(self) -> RendezvousClient:
        """Return a way to speak with the conductor."""
        return RendezvousClient(self.address, self.port)


class Process:
    """This process, as a rank of a run.

    Args:
        told: by the conductor. number: of the rank, under which it speaks; an elastic worker's own number.
        node: its name.
    """

    def __init__(self, told: RankConfig, number: int, node: str) -> None:
        self.told, self.number, self.node = told, number, node
        self._telling = told.telling
        self._heart = Heartbeat(self._telling, number, told.ranks)

    def run(self, begin: Callable[[], None]) -> int:
        """Run the code, and return the exit status. One that failed ends this process here, at once.

        Args:
            begin: is called after the conductor knows of this rank, and before the code runs; it may raise.
        """
        faulthandler.enable()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # srun ends a line wherever a piece of it ends
        hello = {
            "node": self.node,
            "pid": os.getpid(),
            "host": network.local(self.told.telling),
            "port": network.free_port(),
        }
        self._telling.put(HELLO, self.number, hello)
        self._heart.start()
        try:
            begin()
            play(self.told, self.number)
            if self.told.backend == "mpi":
                mpi.check(self.told.ranks)  # code may begin MPI later than at its import
        except BaseException as error:  # noqa: BLE001  whatever it is ends the rank, and is told
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                self._fail(error)
        self._heart.stop(LAST_WORDS)
        self._telling.put(END, self.number, {"ok": True})
        return 0

    def _fail(self, error: BaseException) -> None:
        """Say what happened and end, whatever threads and libraries would wait for."""
        found = described(error)
        said = {"rank": self.number, "node": self.node, **found}
        for line in (found["traceback"].rstrip(), f"[carme] rank {self.number} on {self.node} failed"):
            print(line, file=sys.stderr)  # noqa: T201  the rank's own log
        try:
            keep(self.told.folder / f"error-{self.number}.json", said)
        except OSError as trouble:
            print(f"[carme] the error cannot be kept: {trouble}", file=sys.stderr)  # noqa: T201
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the conductor ends all when it hears this, and we are about to
        try:
            self._telling.put(END, self.number, {"ok": False, "error": said})
        except ConductorUnreachable as trouble:
            print(f"[carme] {trouble}", file=sys.stderr)  # noqa: T201
        self._heart.stop(FAILED_WORDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code & 255 or 1 if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def described(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    text = "".join(traceback.TracebackException(type(error), error, trace, compact=True).format())
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    message = f"the code ended with status {error.code}" if isinstance(error, SystemExit) else str(error)
    if isinstance(error, ModuleNotFoundError) and (what := kernels.needed(error.name or "")):
        message, text = f"{message}. {what}", f"{text.rstrip()}\n{what}\n"
    return {"type": name, "message": message[:10_000], "traceback": text[-100_000:]}


def _ours(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen ")


# -- the code ---------------------------------------------------------------------------------------------------------


def play(told: RankConfig, number: int) -> None:
    """Run the code of a run in this process, and keep what it returns.

    Args:
        number: of the rank; the variables of ``--pull`` are those of 0.
    """
    os.chdir(told.cwd)
    # What lies beside the code comes first for the code, and was not there (python -P) for what is ours.
    beside = str(Path(told.script).parent) if told.kind == "script" else told.cwd
    sys.path[:0] = [beside, *(each for each in told.path if each not in sys.path)]
    if told.kind == "call":
        fn, args, kwargs = results.unpickled((told.folder / "call.pkl").read_bytes(), "The function")
        found = fn(*args, **kwargs)
        write(told.folder / f"result-{number}.pkl", returned(found, number, told.limit))
    elif told.kind == "script":
        sys.argv = [told.script, *told.args]
        _execute(Path(told.script), {})
    else:
        sys.argv = [""]
        push = told.folder / "push.pkl"
        names = _execute(told.folder / "cell.py", results.pulled(push.read_bytes()) if push.exists() else {})
        if told.pull and number == 0:
            write(told.folder / "result-0.pkl", _pulled(names, told))


def returned(value: Any, number: int, limit: int) -> bytes:
    """Return what a rank's function returned as bytes; errors as ``results.pickled``."""
    return results.pickled(value, f"What rank {number} returned", limit)


def _execute(path: Path, names: Mapping[str, Any]) -> dict[str, Any]:
    """Run a file as ``__main__`` and return its variables."""
    main = types.ModuleType("__main__")
    main.__dict__.update({"__file__": str(path), "__builtins__": __builtins__, **names})
    sys.modules["__main__"] = main
    exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)  # noqa: S102  this is what a rank is for
    return main.__dict__


def _pulled(names: Mapping[str, Any], told: RankConfig) -> bytes:
    missing = [name for name in told.pull if name not in names]
    if missing:
        raise NameError(f"--pull {','.join(missing)}: the code has made no such variable.")
    return pickle.dumps(results.Pulled(results.pushed({name: names[name] for name in told.pull}, told.limit)))


# -- its place --------------------------------------------------------------------------------------------------------


def set_environ(told: RankConfig, place: Rank) -> None:
    """Say in the environment what the code, Horovod and torch look for there, and keep to this rank's own GPUs."""
    os.environ.update(common(told))
    os.environ.update(
        {
            "CARME_RANK": str(place.number),
            "CARME_SIZE": str(place.size),
            "CARME_LOCAL_RANK": str(place.local),
            "CARME_LOCAL_SIZE": str(place.local_size),
            "CARME_NODE": place.node,
        }
    )
    share_processors(place.local_size)
    interface = network.interface(told.telling)
    if interface:
        os.environ.update({"GLOO_SOCKET_IFNAME": interface})
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    if told.backend != "mpi":  # under MPI, Horovod asks MPI
        os.environ.update(place.for_horovod(told.address, told.port, interface=interface))
    take_gpus(place.local, told.gpus_per_task)


def share_processors(among: int) -> None:
    """Have this rank's code start threads for its share of the processors here, unless the user has said how many."""
    # Without it each rank would start a thread for every processor; torchrun allows one, which leaves some idle.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // among)))


def common(told: RankConfig) -> dict[str, str]:
    """Return what is the same for all ranks of a run."""
    return {"CARME_RUN": told.run, "CARME_RUN_FOLDER": str(told.folder), "CARME_LOGDIR": told.logdir}


def take_gpus(local: int, count: int, environ: os._Environ[str] | dict[str, str] = os.environ) -> None:
    """Leave this rank its own GPUs among those of the step on this node: the ``local``-th ``count`` of them.

    Raises:
        NoGPU: there are fewer.
    """
    if not count:
        return
    found = [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    mine = found[local * count : (local + 1) * count]
    if len(mine) < count:
        raise NoGPU(
            f"This rank should have {count} GPUs, as number {local} of its node, but the step has {len(found)} there. "
            "Ask for fewer ranks, or for --gpus-per-task 0."
        )
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)


def started(words: list[str]) -> tuple[RankConfig, str]:
    """Return what a rank is told, and the name of its step, as the words of its command say; install what all have."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where whoever started this ignores it
    told = RankConfig.read(Path(words[0]))
    garbage.install()
    thread_exit.install()
    return told, words[1]


def main(words: list[str]) -> int:
    """Run one rank."""
    told, step = started(words)
    place = rank_of(os.environ)

    def begin() -> None:
        set_environ(told, place)
        os.environ.update(place.for_torch(*network.of_rank_0(told.telling, told.start_limit)))
        torch_store.install(told.folder, step)
        horovod.install()
        if told.backend == "mpi":
            mpi.install(place.size)

    return Process(told, place.number, place.node).run(begin)


if __name__ == "__main__":
    # Under its own name, so that whoever imports it has the same classes.
    sys.exit(importlib.import_module("carme_hub.training.rank.program").main(sys.argv[1:]))
