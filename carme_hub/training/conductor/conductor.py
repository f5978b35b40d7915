"""The conductor of a run: one process in the session's container, which is no child of the kernel that started the run.

It holds the run's rendezvous, starts the ranks through the step broker, records what they report, and answers requests
for the run's state. When it ends, its connections to the broker close, and with them every step of the run.

``conduct.py`` is its program; ``fixed_size.FixedSizeRun`` and ``elastic.elastic_run.ElasticRun`` are the two kinds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from carme_hub.training.records import record
from carme_hub.training.run import environment, messages, results
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.description import rank_label
from carme_hub.training.run.output import Output
from carme_hub.training.run.private_files import exists, write_json
from carme_hub.training.run.rendezvous import Rendezvous
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.run_options import from_json
from carme_hub.training.run.run_state import RunState
from carme_hub.training.session.step_broker import NoAnswer, NoBroker, NotReady

from .requeue import continuation
from .step import StartedStep

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Allocation, Broker, Step

#: Seconds between two checks for a file that asks for the end, between two queries of the job's end, and until a run
#: that is not detached must have a follower.
FILE_INTERVAL, DEADLINE_INTERVAL, FOLLOW_TIMEOUT = 0.5, 30.0, 20.0
#: Seconds in which a rank may start a shell that was asked for.
SHELL_SECONDS = 120.0
#: Seconds in which this process learns of the end of its job after its ranks did.
CANCEL_SECONDS = 2.0
#: Seconds for which a run that was submitted tries again where Slurm does not answer, and between two tries.
SLURM_SECONDS, SLURM_INTERVAL = 300.0, 5.0
Result = TypeVar("Result")
#: Seconds after which the record of a run is written: its ranks start meanwhile.
RECORD_DELAY = 2.0


class Stopped(Exception):
    """The run was stopped, or it lost its last follower."""


#: The most characters of the message of a run; the whole error is in its log and its state.
MAX_MESSAGE = 500


class Failed(Exception):
    """The run failed.

    Args:
        message: for users, who see the first ``MAX_MESSAGE`` characters of it. error: of the rank that failed: rank,
            node, type, message, traceback.
    """

    def __init__(self, message: str, error: State | None = None) -> None:
        if len(message) > MAX_MESSAGE:
            at = message.rfind(" ", MAX_MESSAGE - 80, MAX_MESSAGE)
            message = f"{message[: at if at > 0 else MAX_MESSAGE]} …"
        super().__init__(message)
        self.error = error


class Conductor:
    """The common part of all runs; subclasses implement ``run_ranks``.

    Attributes:
        run, request, options: its folder, the content of ``asked.json``, and the options in it. broker: of the session.
        allocation: the session's job. rendezvous: of this run. output: the logs of its ranks. state: its state.
        ops: operations of the control socket, by name; ``RequestRefused`` says why one is refused.
        stopping: is set when the run has to end; ``stop_mode`` says how: "stop" or "interrupt".
    """

    allocation: Allocation
    rendezvous: Rendezvous
    #: The module that each rank runs.
    program = "carme_hub.training.rank.program"

    def __init__(self, run: Run, broker: Broker) -> None:
        self.run, self.broker = run, broker
        self.request = run.request()
        self.options = from_json(self.request["asked"])
        self.output = Output(run.folder)
        self.state = RunState(run, conductor={"node": os.uname().nodename, "pid": os.getpid()})
        self.stopping, self.stop_mode, self.stop_reason = threading.Event(), "", ""
        self.ops: dict[str, Callable[[State], State]] = {
            "state": lambda _: self.state.get(),
            "stop": lambda _: self.end("stop", "The run was stopped."),
            "interrupt": lambda _: self.end("interrupt", "The run was interrupted."),
            "resize": _refuse_resize,
            "stacks": lambda _: self._request_stacks(),
            "shell": self._request_shell,
            "checkpoint": self._request_checkpoint,
            "newest": lambda config: {"lines": self.output.newest(int(config.get("rank", 0)))},
        }
        self._stacks = 0  # how often stacks were asked for
        self._ends_early = 0.0  # the session is put in order before its end (``server.orderly_end``); 0 = it is not
        self._shells: dict[int, State] = {}  # that ranks are to start, by number
        self._shell_count = 0
        self._asking = threading.Lock()
        self._recording = threading.Lock()
        self.started = 0.0  # when the ranks started, by the monotonic clock
        self._handles: list[StartedStep] = []
        self._began, self._files_checked, self._followers = time.monotonic(), 0.0, -1

    # -- from start to end --------------------------------------------------------------------------------------------

    def conduct(self) -> None:
        """Run the ranks; record the end of the run and leave no process, whatever happens."""
        self.state.start()
        end: State = {"state": "finished", "message": ""}
        try:
            self.allocation = self._patiently(self.broker.allocation)
            with self.make_rendezvous(self.allocation.address) as self.rendezvous:
                self._check_rendezvous()
                threading.Thread(target=self._watch_deadline, name="carme-ends", daemon=True).start()
                try:
                    self.run_ranks()
                except BaseException as error:  # noqa: BLE001  the ranks have to end, and somebody to be told
                    end = self._outcome_of(error)
                    self.state.update(**end | {"state": "stopping"})
                finally:
                    self._end_steps()
                    self.state.refresh_ranks(self.rendezvous)
                    self.record_ends(end)
                    end["message"] = " ".join(filter(None, [end["message"], *results.problems(self.run.folder)][:4]))
        except BaseException as error:  # noqa: BLE001  the same
            end = self._outcome_of(error)
        finally:
            try:
                self.finish()
            except Exception as error:  # noqa: BLE001  the end has to be written down
                traceback.print_exception(error)
                end["message"] = f"{end['message']} Its resources could not be given back: {error}".strip()
            self.output.close()
            for name in ("run.json", environment.FILE):  # their secrets are not needed any more
                (self.run.folder / name).unlink(missing_ok=True)
            instead = continuation(self.run, self.options, end, self._began)
            self.state.close(instead, **end, ended=time.time())
            self._record()  # of a run that was shorter than RECORD_DELAY; nobody waits for it

    def _patiently(self, do: Callable[[], Result]) -> Result:
        """Do something; where Slurm does not answer, a run that was submitted tries for a while: it has waited long."""
        until = time.monotonic() + (SLURM_SECONDS if self.options.submit else 0.0)
        before: str | None = None  # only what was said here is taken back: other threads say things too
        while True:
            try:
                found = do()
                if before is not None:
                    self.state.update(message=before)
                return found
            except NoAnswer as error:
                if time.monotonic() > until:
                    raise
                before = self.state.get()["message"] if before is None else before
                self.state.update(message=str(error))
                self.stopping.wait(SLURM_INTERVAL)
                self.check()

    def run_ranks(self) -> None:
        """Start the ranks and return when all have succeeded; raise ``Failed`` or ``Stopped`` otherwise."""
        raise NotImplementedError

    def make_rendezvous(self, host: str) -> Rendezvous:
        """Return the rendezvous of this run, bound to this address."""
        return Rendezvous(host)

    def record_ends(self, end: State) -> None:
        """Record how the ranks ended, and add to the record of the run's end what is known only now."""

    def finish(self) -> None:
        """Give back the run's resources after its ranks have ended."""

    def _outcome_of(self, error: BaseException) -> State:
        if isinstance(error, Stopped):
            return {"state": "interrupted", "message": str(error)}
        # Slurm may end the ranks of a job that is cancelled before it tells this process.
        ended = "SIGTERM" in str(error) or self.options.submit
        if isinstance(error, Failed) and ended and self.stopping.wait(CANCEL_SECONDS):
            return {"state": "interrupted", "message": self.stop_reason}
        if isinstance(error, Failed):
            return {"state": "failed", "message": str(error), "error": error.error}
        if not isinstance(error, NoBroker):  # its message is enough
            traceback.print_exception(error)  # to conductor.log
        return {"state": "failed", "message": str(error) or type(error).__name__}

    def check(self) -> None:
        """Raise ``Stopped`` or ``Failed`` where the run has to end: on request, or at its time limit."""
        now = time.monotonic()
        if now > self._files_checked + FILE_INTERVAL:
            self._files_checked = now
            for how in ("stop", "interrupt"):
                if exists(self.run.folder / how):
                    self.end(how, "The run was stopped from another session.")
            if not exists(self.run.folder, unknown=True):
                self.end("stop", "The folder of the run was deleted.")
            if self._followers < 0 and not self.options.detach and now > self._began + FOLLOW_TIMEOUT:
                self.end("stop", "Nobody followed the run.")
        if self.stopping.is_set():
            raise Stopped(self.stop_reason)
        if self.options.seconds and self.started and now > self.started + self.options.seconds:
            message = (
                f"The time limit of {self.options.seconds} s is over. Set a longer --time, or save the work "
                "before: here.on_time_limit."
            )
            raise Failed(message, error_entry(None, "", "TimeLimit", message))

    def _request_stacks(self) -> State:
        """Have each rank write its stacks with its next heartbeat."""
        if not hasattr(self, "rendezvous"):
            raise RequestRefused("The run is starting.")
        with self._asking:
            self._stacks += 1
            self._answer_heartbeats()
            return {"number": self._stacks}

    def _request_checkpoint(self, request: State) -> State:
        """Tell the ranks that they have so many seconds left; who asked ends the session after that, not this run."""
        if not hasattr(self, "rendezvous"):
            raise RequestRefused("The run is starting.")
        with self._asking:
            self._ends_early = time.time() + max(1.0, float(request["seconds"]))
            self._answer_heartbeats()
        return {"at": self._ends_early}

    def _request_shell(self, request: State) -> State:
        """Say where a terminal can listen for a rank; with its port and key have the rank connect; see ``shell``."""
        rank = int(request["rank"])
        if "done" in request:
            self.forget_shells(int(request["done"]))
            return {}
        ranks = self.state.get()["ranks"]
        running = {int(entry["rank"]): entry for entry in ranks if entry["state"] == "running"}
        if rank not in running:
            there = f"Running: {', '.join(map(str, sorted(running)))}." if running else "No rank runs."
            raise RequestRefused(f"Rank {rank} does not run. {there}")
        host, number = str(request.get("host") or self.allocation.address), 0
        if "port" in request:
            with self._asking:
                self._shell_count += 1
                number = self._shell_count
                wanted: State = {"id": number, "rank": rank, "host": host, "until": time.time() + SHELL_SECONDS}
                self._shells[number] = wanted | {"port": int(request["port"]), "key": str(request["key"])}
                self._answer_heartbeats()
        label = f"Rank {rank_label(running[rank])}"
        node, interval = str(running[rank]["node"]), messages.heartbeat_interval(self.options.ranks)
        return {"id": number, "host": host, "node": node, "label": label, "interval": interval}

    def forget_shells(self, number: int = 0) -> None:
        """Have no rank connect to a terminal any more: to this one, or to any."""
        with self._asking:
            if number:
                self._shells.pop(number, None)
            else:
                self._shells.clear()
            if hasattr(self, "rendezvous"):
                self._answer_heartbeats()

    def _answer_heartbeats(self) -> None:
        """Tell all ranks with their next heartbeats what is asked of them; the caller holds ``_asking``."""
        self._shells = {number: each for number, each in self._shells.items() if each["until"] > time.time()}
        wanted = {"stacks": self._stacks, "shells": list(self._shells.values()), "ends": self._ends_early}
        self.rendezvous.want(messages.BEAT, json.dumps(wanted).encode())

    def end(self, how: str, why: str) -> State:
        """Request the end of the run: "stop" or "interrupt"."""
        if not self.stopping.is_set():
            self.stop_mode, self.stop_reason = how, why
            self.stopping.set()
        return {"state": "stopping"}

    def followers_changed(self, count: int) -> None:
        """Record the number of followers; end the run when the last one leaves, unless it is detached."""
        left = self._followers > 0 and not count
        self._followers = count
        if left and not self.options.detach:
            self.end("stop", "Nobody follows the run any more. With --detach it would have continued.")

    def answer(self, request: State) -> State:
        """Answer a request from the control socket."""
        op = self.ops.get(str(request["op"]))
        if op is None:
            raise RequestRefused(f"There is no operation {request['op']!r}.")
        return op(request)

    # -- ranks --------------------------------------------------------------------------------------------------------

    def write_run_config(self, **more: Any) -> None:
        """Write ``run.json``, which each rank reads first (see ``RankConfig``); call it before ``start_step``."""
        request = {name: value for name, value in self.request.items() if name != "asked"}
        config = {
            **request,
            "run": self.run.id,
            "ranks": self.options.ranks,
            "backend": self.options.backend,
            "gpus_per_task": self.options.gpus_per_task or 0,
            "pull": list(self.options.pull),
            "profile": self.options.profile,
            "logdir": str(self.run.logdir),
            "address": self.rendezvous.address,
            "port": self.rendezvous.port,
            **more,
        }
        write_json(self.run.folder / "run.json", config)

    def argv(self, step: str) -> tuple[str, ...]:
        """Return the command of a rank. ``step`` names the step: ranks with the same name form one world."""
        return (sys.executable, "-P", "-m", self.program, str(self.run.folder), step)

    def start_step(self, step: Step, *, rank_of_task: Callable[[int], int]) -> StartedStep:
        """Start a step of this run; it ends with the run at the latest."""
        handle = self._patiently(lambda: StartedStep(self.broker, step, self.output, rank_of_task))
        self._handles.append(handle)
        self.started = self.started or time.monotonic()
        return handle

    def _end_steps(self) -> None:
        threads = [
            threading.Thread(target=each.stop, kwargs={"interrupt": self.stop_mode == "interrupt"})
            for each in self._handles
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def last_lines(self, rank: int, count: int = 15) -> str:
        """Return the last lines of a rank's output, for an error message."""
        return "\n".join(self.output.newest(rank)[-count:])

    # -- deadline and rendezvous --------------------------------------------------------------------------------------

    def _check_rendezvous(self) -> None:
        """Send a request to the rendezvous as a rank does: one that does not answer makes Horovod abort silently."""
        placement = messages.RendezvousClient(self.rendezvous.address, self.rendezvous.port)
        placement.put(messages.BROADCAST, "ends", {"at": self.deadline(self.allocation)})

    def deadline(self, allocation: Allocation) -> float:
        """Return when the ranks of a job must have ended; 0 = unknown."""
        limit = time.time() + self.options.seconds - (time.monotonic() - (self.started or time.monotonic()))
        early = self._ends_early if self._ends_early > time.time() else 0.0
        return min(filter(None, (allocation.ends, limit if self.options.seconds else 0.0, early)), default=0.0)

    def _watch_deadline(self) -> None:
        """Publish the end of the job, which may be extended, to the ranks, and report activity to the hub."""
        # Imported here: TLS takes a moment to import, and the start of the ranks should not wait for it.
        from carme_hub.training.session.activity import Activity

        activity = Activity()
        self.stopping.wait(RECORD_DELAY)
        self._record()
        while not self.stopping.wait(DEADLINE_INTERVAL):
            activity.say()
            try:
                ends = self.deadline(self.ranks_allocation())
            except NotReady:
                continue  # its companion is pending, or has ended
            except Exception:  # noqa: BLE001  asked again soon; what was told last still holds
                traceback.print_exc()
                continue
            self.publish_deadline(ends)

    def _record(self) -> None:
        """Write the record of the run, once; what fails costs no run."""
        with self._recording:
            if not (self.run.folder / record.RECORD).exists():
                try:
                    record.write_record(self.run)
                except Exception:  # noqa: BLE001  a full disk, a repository that is broken
                    traceback.print_exc()

    def publish_deadline(self, at: float) -> None:
        """Publish to the ranks when they must have ended; 0 = unknown."""
        self.rendezvous.put(messages.BROADCAST, "ends", json.dumps({"at": at}).encode())

    def ranks_allocation(self) -> Allocation:
        """Return the current allocation of the job that has the ranks."""
        return self.broker.allocation()


def error_entry(rank: int | None, node: str, type: str, message: str, traceback: str = "") -> State:
    """Return an error as a field of the state."""
    return {"rank": rank, "node": node, "type": type, "message": message, "traceback": traceback}


def _refuse_resize(_: State) -> NoReturn:
    raise RequestRefused("This run has a fixed number of ranks. Start it with --elastic FEWEST:MOST to change it.")
