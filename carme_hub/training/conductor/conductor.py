"""One run is conducted by one process in the session's container, which is no child of the kernel that asked for it.

It holds the run's rendezvous, starts its ranks through the step broker, writes down what they say, and answers whoever
asks how the run stands. When it ends the broker's connection closes, and with that every step of the run.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from carme_hub.training.run import messages
from carme_hub.training.run.control import NotDone
from carme_hub.training.run.output import Output
from carme_hub.training.run.private_files import keep
from carme_hub.training.run.rendezvous import Rendezvous
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.run_options import of_json
from carme_hub.training.run.run_state import RunState
from carme_hub.training.session.step_broker import NoBroker, NotReady

from .step import StartedStep

if TYPE_CHECKING:
    from carme_hub.training.session.step_broker import Allocation, Broker, Step

#: Seconds between two looks for a file that asks for the end, between two questions for the end of the job, and
#: until somebody must look on at a run that is not detached.
LOOK, ENDS, FOLLOWED = 0.5, 30.0, 20.0


class Stopped(Exception):
    """Somebody asked for the end, or nobody looks on any more."""


class Failed(Exception):
    """The run ends here.

    Args:
        message: for people. error: whose fault it is: rank, node, type, message, traceback.
    """

    def __init__(self, message: str, error: State | None = None) -> None:
        super().__init__(message)
        self.error = error


class Conductor:
    """What every run needs, whether its number of ranks changes or not; ``play`` is what differs.

    Attributes:
        run, told, asked: its folder, ``asked.json`` as a whole, and what was asked for. broker: of the session.
        allocation: the session's job. rendezvous: of this run. output: the logs of its ranks. standing: its state.
        ops: what can be asked over the control socket, name → what answers; ``NotDone`` says why not.
        stopping: is set when the run has to end; ``how`` says how: "stop" or "interrupt".
    """

    allocation: Allocation
    rendezvous: Rendezvous
    #: What runs in each rank, as a module.
    program = "carme_hub.training.rank.program"

    def __init__(self, run: Run, broker: Broker) -> None:
        self.run, self.broker = run, broker
        self.told = run.asked()
        self.asked = of_json(self.told["asked"])
        self.output = Output(run.folder)
        self.standing = RunState(run, conductor={"node": os.uname().nodename, "pid": os.getpid()})
        self.stopping, self.how, self.why = threading.Event(), "", ""
        self.ops: dict[str, Callable[[State], State]] = {
            "state": lambda _: self.standing.get(),
            "stop": lambda _: self.end("stop", "It was stopped."),
            "interrupt": lambda _: self.end("interrupt", "It was interrupted."),
            "resize": _fixed,
            "newest": lambda said: {"lines": self.output.newest(int(said.get("rank", 0)))},
        }
        self.started = 0.0  # when the ranks were, by the monotonic clock
        self._handles: list[StartedStep] = []
        self._begun, self._looked, self._followers = time.monotonic(), 0.0, -1

    # -- from beginning to end ----------------------------------------------------------------------------------------

    def conduct(self) -> None:
        """Play the run; whatever comes, its end is written down and nothing of it is left."""
        self.standing.start()
        end: State = {"state": "finished", "message": ""}
        try:
            self.allocation = self.broker.allocation()
            with self.meet(self.allocation.address) as self.rendezvous:
                self._check_rendezvous()
                threading.Thread(target=self._watch_ends, name="carme-ends", daemon=True).start()
                try:
                    self.play()
                except BaseException as error:  # noqa: BLE001  the ranks have to end, and somebody to be told
                    end = self._end_of(error)
                    self.standing.update(**end | {"state": "stopping"})
                finally:
                    self._end_steps()
                    self.standing.beats(self.rendezvous)
        except BaseException as error:  # noqa: BLE001  the same
            end = self._end_of(error)
        finally:
            try:
                self.finish()
            except Exception as error:  # noqa: BLE001  the end has to be written down
                traceback.print_exception(error)
                end["message"] = f"{end['message']} What it had could not be given back: {error}".strip()
            self.output.close()
            (self.run.folder / "run.json").unlink(missing_ok=True)  # its secret is of no use any more
            self.standing.close(**end, ended=time.time())

    def play(self) -> None:
        """Start ranks and return when all have ended well; raise ``Failed`` or ``Stopped`` otherwise."""
        raise NotImplementedError

    def meet(self, host: str) -> Rendezvous:
        """Return the rendezvous of this run, on this address."""
        return Rendezvous(host)

    def finish(self) -> None:
        """Give back what the run had, after its ranks have ended."""

    def _end_of(self, error: BaseException) -> State:
        if isinstance(error, Stopped):
            return {"state": "interrupted", "message": str(error)}
        if isinstance(error, Failed):
            return {"state": "failed", "message": str(error), "error": error.error}
        if not isinstance(error, NoBroker):  # which says all there is to say
            traceback.print_exception(error)  # to conductor.log
        return {"state": "failed", "message": str(error) or type(error).__name__}

    def check(self) -> None:
        """Raise what has to end the run: that somebody asked for it, or that its time is over."""
        now = time.monotonic()
        if now > self._looked + LOOK:
            self._looked = now
            for how in ("stop", "interrupt"):
                if _there(self.run.folder / how):
                    self.end(how, "It was stopped from another session.")
            if not _there(self.run.folder, unknown=True):
                self.end("stop", "Its folder was deleted.")
            if self._followers < 0 and not self.asked.detach and now > self._begun + FOLLOWED:
                self.end("stop", "Nobody looked on.")
        if self.stopping.is_set():
            raise Stopped(self.why)
        if self.asked.seconds and self.started and now > self.started + self.asked.seconds:
            message = (
                f"Its time limit of {self.asked.seconds} s is over. Give it more by --time, or have it save its work "
                "before: here.on_time_limit."
            )
            raise Failed(message, error_of(None, "", "TimeLimit", message))

    def end(self, how: str, why: str) -> State:
        """Ask for the end of the run: "stop" or "interrupt"."""
        if not self.stopping.is_set():
            self.how, self.why = how, why
            self.stopping.set()
        return {"state": "stopping"}

    def followed(self, count: int) -> None:
        """Take notice of how many look on."""
        left = self._followers > 0 and not count
        self._followers = count
        if left and not self.asked.detach:
            self.end("stop", "Nobody looks on any more. With --detach it would have gone on.")

    def answer(self, request: State) -> State:
        """Answer what was asked over the control socket."""
        op = self.ops.get(str(request["op"]))
        if op is None:
            raise NotDone(f"There is no {request['op']!r}.")
        return op(request)

    # -- ranks --------------------------------------------------------------------------------------------------------

    def tell(self, **more: Any) -> None:
        """Write ``run.json``, which each rank reads first (see ``RankConfig``); to be done before ``start_step``."""
        told = {name: value for name, value in self.told.items() if name != "asked"}
        said = {
            **told,
            "run": self.run.id,
            "ranks": self.asked.ranks,
            "backend": self.asked.backend,
            "gpus_per_task": self.asked.gpus_per_task or 0,
            "pull": list(self.asked.pull),
            "logdir": str(self.run.logdir),
            "address": self.rendezvous.address,
            "port": self.rendezvous.port,
            **more,
        }
        keep(self.run.folder / "run.json", said)

    def argv(self, step: str) -> tuple[str, ...]:
        """Return the command of a rank. ``step`` names the step: ranks of the same name are of one world."""
        return (sys.executable, "-P", "-m", self.program, str(self.run.folder), step)

    def start_step(self, step: Step, *, rank_of_task: Callable[[int], int]) -> StartedStep:
        """Start a step of this run; it ends with the run at the latest."""
        handle = StartedStep(self.broker, step, self.output, rank_of_task)
        self._handles.append(handle)
        self.started = self.started or time.monotonic()
        return handle

    def _end_steps(self) -> None:
        threads = [
            threading.Thread(target=each.stop, kwargs={"interrupt": self.how == "interrupt"}) for each in self._handles
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def last_lines(self, rank: int, count: int = 15) -> str:
        """Return the last lines that a rank wrote, to be quoted."""
        return "\n".join(self.output.newest(rank)[-count:])

    # -- beside -------------------------------------------------------------------------------------------------------

    def _check_rendezvous(self) -> None:
        """Ask the rendezvous as a rank does: one that does not answer makes Horovod abort without a word."""
        there = messages.RendezvousClient(self.rendezvous.address, self.rendezvous.port)
        there.put(messages.TOLD, "ends", {"at": self.ends_at(self.allocation)})

    def ends_at(self, allocation: Allocation) -> float:
        """Return when the ranks in a job have to have ended, 0 = unknown."""
        limit = time.time() + self.asked.seconds - (time.monotonic() - (self.started or time.monotonic()))
        known = [each for each in (allocation.ends, limit if self.asked.seconds else 0) if each]
        return min(known, default=0.0)

    def _watch_ends(self) -> None:
        """Tell ranks when their job ends, which may be extended while they run, and the hub that there is work."""
        # TLS takes a moment to import, and the ranks are waited for.
        from carme_hub.training.session.activity import Activity

        activity = Activity()
        while not self.stopping.wait(ENDS):
            activity.say()
            try:
                ends = self.ends_at(self.where())
            except NotReady:
                continue  # its companion is waited for, or has ended
            except Exception:  # noqa: BLE001  asked again soon; what was told last still holds
                traceback.print_exc()
                continue
            self.tell_end(ends)

    def tell_end(self, at: float) -> None:
        """Tell the ranks when they have to have ended, 0 = unknown."""
        self.rendezvous.put(messages.TOLD, "ends", json.dumps({"at": at}).encode())

    def where(self) -> Allocation:
        """Return the job in which the ranks are, as it is now."""
        return self.broker.allocation()


def error_of(rank: int | None, node: str, type: str, message: str, traceback: str = "") -> State:
    """Return an error as the state has it."""
    return {"rank": rank, "node": node, "type": type, "message": message, "traceback": traceback}


def _there(path: Path, *, unknown: bool = False) -> bool:
    """Return whether there is such a file; ``unknown`` where the home does not answer."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return unknown
    return True


def _fixed(_: State) -> NoReturn:
    raise NotDone("This run has a fixed number of ranks. Start it with --elastic FEWEST:MOST to change it.")
