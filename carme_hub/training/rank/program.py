"""The program of one rank: ``python -m carme_hub.training.rank.program FOLDER STEP``.

It finds its number, runs the code, and reports its progress and its end. ``run.json`` in the run's folder has its
configuration, and srun's environment its number. The code that runs imports torch and Horovod; this program does not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme_hub.training.run import environment, results
from carme_hub.training.run.messages import BROADCAST, END, HELLO, MPI, ConductorUnreachable, RendezvousClient
from carme_hub.training.run.private_files import write_json
from carme_hub.training.templates import kernels

from . import devices, garbage, network, thread_exit, wakeup
from .callbacks import lightning, transformers
from .deadline import DEADLINE, VARIABLE
from .heartbeat import Heartbeat
from .libraries import horovod, jax, mlflow, mpi, torch_store
from .numbering import Rank, rank_from_environ, remove_slurm
from .output import execute, rich_output
from .profile.profiler import Profiler

#: Seconds for a rank's last report: of one that succeeded, whose last steps and scalars are to be kept, and of one that
#: failed, which has reported its error already.
END_TIMEOUT, FAILED_TIMEOUT = 15.0, 2.0


#: Name of the run whose variables this process has.
_ENVIRON_TAKEN = "CARME_ENVIRON"


class CommandMissing(RuntimeError):
    """The program of a run cannot be started."""


class CommandFailed(RuntimeError):
    """The program of a run ended with an error; ``code`` is its status, 128 + n for signal n."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class RankConfig:
    """The configuration of a rank from ``Conductor.write_run_config``; unknown fields are ignored.

    Attributes:
        folder: of the run. kind: "cell", "script", "module", "command" or "call". path: folders of the notebook's
            modules.
        address, port: of the rendezvous, with its secret. limit: the most bytes of a result.
        start_limit: seconds for all ranks to start. restarts: how often they were started again, of at most
            ``max_restarts``. parts: the ranks on each node of each step, where there is more than one step.
            profile: first and last step to profile.
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
    module: str = ""
    command: str = ""
    restarts: int = 0
    max_restarts: int = 0
    parts: tuple[tuple[int, ...], ...] = ()
    profile: tuple[int, int] | None = None

    @classmethod
    def read(cls, folder: Path) -> RankConfig:
        """Read the configuration from a run's folder."""
        document = json.loads((folder / "run.json").read_text())
        lists = {name: tuple(document[name]) for name in ("args", "path", "pull")}
        known = {name: document[name] for name in cls.__slots__ if name in document}
        parts = tuple(tuple(part) for part in document.get("parts", ()))
        return cls(**{**known, **lists, "parts": parts, "folder": folder})

    @property
    def rendezvous_client(self) -> RendezvousClient:
        """Return a new client of the conductor's rendezvous."""
        return RendezvousClient(self.address, self.port)


class Process:
    """This process, as a rank of a run.

    Args:
        config: from the conductor. number: of the rank, in its messages; an elastic worker's own number.
        node: its name.
    """

    def __init__(self, config: RankConfig, number: int, node: str) -> None:
        self.config, self.number, self.node = config, number, node
        self._client = config.rendezvous_client
        self._heartbeat = Heartbeat(
            self._client, number, config.ranks, config.folder if config.kind != "command" else None
        )

    def run(self, begin: Callable[[], None]) -> int:
        """Run the code, and return the exit status. Where the code fails, this process ends here.

        Args:
            begin: is called when the conductor knows of this rank, before the code runs; it may raise an error.
        """
        faulthandler.enable()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # srun would break a line that arrives in pieces
        hello = {
            "node": self.node,
            "pid": os.getpid(),
            "host": network.local_address(self.config.rendezvous_client),
            "port": network.free_port(),
        }
        self._client.put(HELLO, self.number, hello)
        with contextlib.suppress(ConductorUnreachable):  # the heartbeat asks again
            if ends := self._client.get(BROADCAST, "ends"):  # before the code's first line, the same for all ranks
                DEADLINE.set(float(ends["at"]))
        self._heartbeat.start()
        try:
            begin()
            run_code(self.config, self.number)
            if self.config.backend == "mpi":
                mpi.check(self.config.ranks)  # code may initialize MPI after its import
        except BaseException as error:  # noqa: BLE001  whatever it is ends the rank, and is told
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                self._fail(error)
        self._heartbeat.stop(END_TIMEOUT)
        self._client.put(END, self.number, {"ok": True})
        return 0

    def _fail(self, error: BaseException) -> None:
        """Report an error and end the process, without waiting for threads or libraries."""
        found = describe_error(error)
        report: dict[str, Any] = {"rank": self.number, "node": self.node, **found}
        if generation := os.environ.get("CARME_GENERATION"):  # of an elastic run with torch
            report["generation"] = int(generation)
        for line in (found["traceback"].rstrip(), f"[carme] rank {self.number} on {self.node} failed"):
            print(line, file=sys.stderr)  # noqa: T201  the rank's own log
        try:
            write_json(self.config.folder / f"error-{self.number}.json", report)
        except OSError as trouble:
            print(f"[carme] the error cannot be written: {trouble}", file=sys.stderr)  # noqa: T201
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the conductor ends all ranks after this report
        try:
            self._client.put(END, self.number, {"ok": False, "error": report})
        except ConductorUnreachable as trouble:
            print(f"[carme] {trouble}", file=sys.stderr)  # noqa: T201
        self._heartbeat.stop(FAILED_TIMEOUT)
        sys.stdout.flush()
        sys.stderr.flush()
        code = error.code if isinstance(error, (SystemExit, CommandFailed)) else 1
        os._exit(code & 255 or 1 if isinstance(code, int) else 1)


def describe_error(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and _is_own_frame(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    text = "".join(traceback.TracebackException(type(error), error, trace, compact=True).format())
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    message = f"the code ended with status {error.code}" if isinstance(error, SystemExit) else str(error)
    if isinstance(error, ModuleNotFoundError) and (what := kernels.hint_for_module(error.name or "")):
        message, text = f"{message}. {what}", f"{text.rstrip()}\n{what}\n"
    return {"type": name, "message": message[:10_000], "traceback": text[-100_000:]}


def _is_own_frame(file: str) -> bool:
    return file in (__file__, execute.__file__) or file.startswith("<frozen ")


# -- the code ---------------------------------------------------------------------------------------------------------


def run_code(config: RankConfig, number: int) -> None:
    """Run the code of a run in this process, and write its result.

    Args:
        number: of the rank; the variables of ``--pull`` are those of rank 0.
    """
    os.chdir(config.cwd)
    # The code's own folder comes first in its sys.path; this package was imported without it (python -P).
    beside = str(Path(config.script).parent) if config.kind == "script" else config.cwd
    sys.path[:0] = [beside, *(each for each in config.path if each not in sys.path)]
    lightning.install()
    transformers.install()
    profiler = Profiler(config.folder, number, *config.profile) if config.profile else None
    if profiler is not None:
        profiler.install()
    try:
        _run_code(config, number)
    except BaseException as error:
        if profiler is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            profiler.drop()
        raise
    finally:
        if profiler is not None:
            profiler.finish()


def _run_code(config: RankConfig, number: int) -> None:
    if config.kind in ("call", "cell"):
        rich_output.install()
    if config.kind == "call":
        fn, args, kwargs = results.load((config.folder / "call.pkl").read_bytes(), "The function")
        found = fn(*args, **kwargs)
        rich_output.show_figures()
        path = config.folder / f"result-{number}.pkl"
        results.save_result(path, found, f"What rank {number} returned", config.limit)
    elif config.kind == "script":
        sys.argv = [config.script, *config.args]
        execute.run_file(Path(config.script), {})
    elif config.kind == "module":
        import runpy  # imported here, as subprocess below: most ranks need neither, and start 10 ms earlier

        sys.argv = ["", *config.args]
        runpy.run_module(config.module, run_name="__main__", alter_sys=True)
    elif config.kind == "command":
        run_command([config.command, *config.args])
    else:
        sys.argv = [""]
        push = config.folder / "push.pkl"
        pushed = results.load_variables(push.read_bytes()) if push.exists() else {}
        names = execute.run_file(config.folder / "cell.py", pushed, cell=True)
        rich_output.show_figures()
        if config.pull and number == 0:
            found = {name: names[name] for name in config.pull if name in names}
            missing = [name for name in config.pull if name not in names]
            results.save_pulled(config.folder / "result-0.pkl", found, missing, config.limit)


def run_command(argv: Sequence[str]) -> None:
    """Run a program that need not be Python, with this rank's environment.

    Raises:
        CommandFailed: it ended with another status than 0. CommandMissing: it cannot be started.
    """
    import subprocess

    if at := DEADLINE.at():
        os.environ[VARIABLE] = str(int(at))
    # Slurm sends signals to the program too. USR1 would end this process, and a handler is reset in the program.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with subprocess.Popen(argv) as process:
            status = process.wait()
    except OSError as error:
        raise CommandMissing(f"{argv[0]} cannot be started: {error.strerror}.") from None
    if status < 0:
        raise CommandFailed(f"{argv[0]} was killed by {signal.Signals(-status).name}", 128 - status)
    if status:
        raise CommandFailed(f"{argv[0]} ended with exit status {status}", status)


# -- environment ------------------------------------------------------------------------------------------------------


def set_environ(config: RankConfig, place: Rank) -> None:
    """Set the variables that the code, Horovod and torch read, and select this rank's GPUs."""
    if config.backend != "mpi":  # MPI may look at Slurm's variables
        remove_slurm(os.environ)
    os.environ.update(common_environ(config))
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
    interface = network.interface_name(config.rendezvous_client)
    if interface:
        os.environ.update({"GLOO_SOCKET_IFNAME": interface})
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    if config.backend != "mpi":  # with MPI, Horovod gets its ranks from MPI
        os.environ.update(place.for_horovod(config.address, config.port, interface=interface))
    devices.select_gpus(place.local, config.gpus_per_task)


def share_processors(among: int) -> None:
    """Limit this rank's threads to its share of the processors, unless the user has set a number."""
    # Otherwise each rank would start a thread for every processor; torchrun's limit of one leaves processors idle.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // among)))


def common_environ(config: RankConfig) -> dict[str, str]:
    """Return the variables that are the same for all ranks of a run."""
    found = {"CARME_RUN": config.run, "CARME_RUN_FOLDER": str(config.folder), "CARME_LOGDIR": config.logdir}
    return {**found, **mlflow.tags(config.run)}


def take_environ(folder: Path) -> None:
    """Set the variables that go along with the run; start this interpreter again where it read some at its start."""
    if os.environ.get(_ENVIRON_TAKEN) == folder.name:
        return  # by this program before it started again, or by torch's agent above it
    try:
        values = {str(name): str(value) for name, value in json.loads((folder / environment.FILE).read_text()).items()}
    except FileNotFoundError:  # the run was created by an older release
        return
    os.environ.update(values | {_ENVIRON_TAKEN: folder.name})
    if any(name.startswith(environment.READ_AT_START) for name in values):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  the same program


def start_rank(words: list[str]) -> tuple[RankConfig, str]:
    """Return a rank's configuration and the name of its step from its arguments; install what every rank needs."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent process ignores it
    config = RankConfig.read(Path(words[0]))
    take_environ(config.folder)
    garbage.install()
    thread_exit.install()
    wakeup.install()
    return config, words[1]


def main(words: list[str]) -> int:
    """Run one rank."""
    config, step = start_rank(words)
    place = rank_from_environ(os.environ, config.parts)

    def report_mpi(started: bool) -> None:
        config.rendezvous_client.put(MPI, place.number, {"started": started})

    def begin() -> None:
        set_environ(config, place)
        zero = network.rank_zero_address(config.rendezvous_client, config.start_limit)
        restarts = (config.restarts, config.max_restarts)
        os.environ.update(place.for_torch(*zero, config.run, restarts) | place.for_jax(*zero))
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun
        torch_store.install(config.folder, step)
        horovod.install()
        jax.install()
        mlflow.install()
        if config.backend == "mpi":
            mpi.install(place.size, report_mpi)

    return Process(config, place.number, place.node).run(begin)


if __name__ == "__main__":
    # Run it under its module name, so that importers get the same classes.
    sys.exit(importlib.import_module("carme_hub.training.rank.program").main(sys.argv[1:]))
