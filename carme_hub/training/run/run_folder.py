"""A run and its folder (``~/.carme/runs/<id>``, 0700): its request, its state, its results and logs.

Every process that can read the folder can follow a run, and ask its conductor, also from another session
(``control``). A run that was submitted has its conductor in a batch job; until that begins, ``batch.json`` has what
the hub said last of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import control, environment, results
from .private_files import write_json

#: States of a live run, and of one that has ended.
LIVE = ("starting", "waiting", "running", "stopping")
ENDED = ("finished", "failed", "interrupted", "lost")
#: Seconds for a conductor to start.
START_TIMEOUT = 30.0
LOST_MESSAGE = "The session of the run has ended, or its conductor was killed."
#: The file with what the hub said last of a run's batch job, and what is said before it says anything.
BATCH_JOB, SUBMITTING = "batch.json", "The batch job is being submitted."
LOOKING_UP = "The batch job says nothing any more. The hub is looking up whether it has ended."
State = dict[str, Any]


class NoRun(LookupError):
    """There is no such run, or it cannot start; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, identified by its folder."""

    folder: Path

    @classmethod
    def load(cls, id: str) -> Run:
        """Find a run.

        Args:
            id: id or name of the run: the newest of several with the same name; ``NAME-1`` is the first one.

        Raises:
            NoRun: there is none of this name.
        """
        if id and "/" not in id and not id.startswith("."):
            first = id.removesuffix("-1")
            for found in (_newest_with_name(id), root() / id, root() / first):
                if found is not None and (found / "state.json").is_file():
                    return cls(found)
        raise NoRun(f"There is no run {id[:80]!r}. `carme-hub runs` lists them.")

    @classmethod
    def by_id(cls, id: str) -> Run:
        """Return the run with exactly this id; errors as ``load``."""
        if not id or "/" in id or id.startswith(".") or not (root() / id / "state.json").is_file():
            raise NoRun(f"There is no run {id[:80]!r} any more. `carme-hub runs` lists them.")
        return cls(root() / id)

    @property
    def id(self) -> str:
        """Return the id, which is the name of the folder."""
        return self.folder.name

    @property
    def logdir(self) -> Path:
        """Return the folder of its TensorBoard events."""
        return self.folder / "tb"

    def request(self) -> State:
        """Return the request, with the options and what to run; see ``create``."""
        return dict(json.loads((self.folder / "asked.json").read_text()))

    def state(self) -> State:
        """Return the state; docs/reference/distributed.md lists its fields.

        A live run without a conductor, for example after the end of its session, is ``lost``; one whose batch job has
        not begun is ``waiting``.

        Raises:
            NoRun: its folder has been deleted.
        """
        state = self._read_state()
        if state["state"] in ENDED or self._has_conductor(state):
            return state
        state = self._read_state()  # a conductor that has ended since the first look has written its end before
        if state["state"] in LIVE and not self._has_conductor(state):
            job = self.batch_job() if is_submitted(state) else {}
            if is_submitted(state) and job.get("state") != "ended":
                if state.get("conductor"):
                    return state | {"message": LOOKING_UP}
                if state.get("outside") and job.get("state") == "running":
                    return state | {"state": "running", "message": f"Its job runs. {_where(self.id)}"}
                return state | {"state": "waiting", "message": job.get("said") or SUBMITTING}
            elsewhere = bool(state.get("outside")) and not state.get("conductor")
            if elsewhere and job.get("succeeded"):
                at = {"ended": float(job.get("at") or 0)}
                return state | {"state": "finished", "message": f"Its job ended well. {_where(self.id)}", **at}
            state |= _end_without_word(job, begun=elsewhere or bool(state.get("conductor")))
            with contextlib.suppress(OSError):
                for name in (environment.FILE, environment.SUBMITTED_FILE):  # they may have secrets
                    (self.folder / name).unlink(missing_ok=True)
            if state["companions"]:
                state["message"] += " If the session still runs, stop the run to give back its companions."
        return state

    def batch_job(self) -> State:
        """Return what the hub said last of its batch job: id, state, said, job, cancelled; {} = nothing yet."""
        try:
            return dict(json.loads((self.folder / BATCH_JOB).read_text()))
        except (OSError, ValueError):
            return {}

    def waits_for_hub(self) -> bool:
        """Return whether only the hub knows what became of its batch job: no conductor has said it, and none runs."""
        try:
            state = self._read_state()
        except (NoRun, ValueError):
            return False
        ended = self.batch_job().get("state") == "ended"
        return is_submitted(state) and state["state"] in LIVE and not ended and not self.lock_held()

    def set_batch_job(self, news: State) -> None:
        """Keep what the hub says of its batch job, with the time at which it first said that it has ended."""
        before = self.batch_job()
        news |= {"at": before.get("at") or time.time()} if news.get("state") == "ended" else {}
        if news != before:
            write_json(self.folder / BATCH_JOB, news)

    def _read_state(self) -> State:
        try:
            return dict(json.loads((self.folder / "state.json").read_text()))
        except FileNotFoundError:
            raise NoRun(f"The folder of the run {self.id} has been deleted.") from None

    def follow(self) -> control.Subscription:
        """Follow the run; a run that is not detached ends when nobody follows it any more.

        Raises:
            control.NoConductor: it has ended, or belongs to another session.
        """
        return control.Subscription(self.id)

    def log(self, rank: int = 0) -> str:
        """Return the output of a rank, "" where there is none."""
        return self.read(rank)[0]

    def read(self, rank: int, start: int = 0, most: int = 1 << 26) -> tuple[str, int]:
        """Return whole lines of a rank's output from byte ``start``, and the byte at which to continue."""
        try:
            with (self.folder / f"rank-{rank}.log").open("rb") as file:
                file.seek(start)
                text = file.read(most)
        except FileNotFoundError:
            return "", start
        whole = text.rfind(b"\n") + 1 or (len(text) if len(text) == most else 0)
        return text[:whole].decode(errors="replace"), start + whole

    def returned(self) -> list[int]:
        """Return the ranks that have a result."""
        found = (path.stem.removeprefix("result-") for path in self.folder.glob("result-*.pkl"))
        return sorted(int(each) for each in found if each.isdigit())

    def result(self, rank: int = 0, *, any_size: bool = False) -> Any:
        """Return the result of a rank, or the variables of ``--pull`` as a ``dict``.

        Args:
            any_size: whether it may be larger than the limit of the run.

        Raises:
            results.NoResult: there is none. results.Rejected: it is larger, or cannot be unpickled here.
        """
        limit = None if any_size else self.request()["limit"]
        return results.read_result(self.folder / f"result-{rank}.pkl", limit)

    def stacks(self, timeout: float = 3.0) -> dict[int, str]:
        """Return the stacks of all threads of each rank that runs, taken now; of one that does not answer, older ones.

        Args:
            timeout: seconds for the ranks to write them.

        Raises:
            control.NoConductor: it has ended, or belongs to another session.
        """
        began = time.time()
        ranks = [int(each["rank"]) for each in self.state()["ranks"] if each["state"] == "running"]
        self.ask("stacks")
        files = {rank: self.folder / f"stack-{rank}.txt" for rank in ranks}
        end = time.monotonic() + timeout
        while time.monotonic() < end and not all(_changed_since(file, began) for file in files.values()):
            time.sleep(0.1)
        found = {}
        for rank, file in files.items():
            every = (file, file.with_suffix(".locked.txt"))  # the second where code keeps Python's lock
            if there := [each for each in every if _changed_since(each, 0)]:
                with contextlib.suppress(OSError):
                    found[rank] = max(there, key=lambda each: each.stat().st_mtime).read_text(errors="replace")
        return found

    def error(self, rank: int) -> State | None:
        """Return the error of one rank: rank, node, type, message and traceback."""
        try:
            return dict(json.loads((self.folder / f"error-{rank}.json").read_text()))
        except FileNotFoundError:
            return None

    # -- changes -------------------------------------------------------------------------------------------------------

    def stop(self, timeout: float = 15.0) -> State:
        """End all ranks, wait for that, and return the state. A run that has ended stays as it is.

        Raises:
            control.RequestRefused: the companions of a lost run could not be given back.
        """
        return self._end("stop", timeout)

    def interrupt(self, timeout: float = 15.0) -> State:
        """Raise ``KeyboardInterrupt`` in all ranks, end those that continue, wait for that, and return the state."""
        return self._end("interrupt", timeout)

    def cancel(self, timeout: float = 3.0) -> None:
        """End a run whose conductor may not have started; a conductor that has started checks for this file."""
        (self.folder / "interrupt").touch(mode=0o600)
        end = time.monotonic() + timeout
        while (state := self.state())["state"] in LIVE and time.monotonic() < end:
            time.sleep(0.05)
        if state["state"] in LIVE and not self.lock_held():
            ended = {"state": "interrupted", "message": "The run was stopped before it started.", "ended": time.time()}
            write_json(self.folder / "state.json", state | ended)
            (self.folder / environment.FILE).unlink(missing_ok=True)

    def resize(self, change: int) -> State:
        """Add ranks to an elastic run, or remove some; return the conductor's answer.

        Raises:
            control.RequestRefused: it is not elastic, or that would be too many or too few ranks.
            control.NoConductor: it has ended, or belongs to another session.
        """
        return self.ask("resize", change=change)

    def ask(self, op: str, *, timeout: float = 30.0, **words: Any) -> State:
        """Send a request to its conductor, also to one in another session; errors as ``resize``."""
        try:
            return control.ask(self.id, {"op": op, **words}, timeout)
        except control.NoConductor:
            if not self.lock_held():
                raise
        return control.ask_by_file(self.folder, {"op": op, **words}, max(timeout, control.FILE_TIMEOUT))

    def request_end(self, how: str, timeout: float = 15.0) -> None:
        """Request the end of a live run, "stop" or "interrupt", and wait for nothing; errors as ``stop``."""
        state = self.state()
        if state["state"] in LIVE:
            try:
                control.ask(self.id, {"op": how}, timeout)
            except control.NoConductor:
                if self._has_conductor(state):
                    (self.folder / how).touch(mode=0o600)  # its conductor is in another container
                elif is_submitted(state):
                    (self.folder / how).touch(mode=0o600)  # its conductor may begin at this moment
                    self._cancel_batch_job()

    def _end(self, how: str, timeout: float) -> State:
        end = time.monotonic() + timeout
        self.request_end(how, timeout)
        while (state := self.state())["state"] in LIVE and time.monotonic() < end:
            time.sleep(0.05)
        if state["state"] == "lost" and state["companions"]:
            self._give_back(state)
        return state

    def _cancel_batch_job(self) -> None:
        """Cancel the batch job, which has not begun."""
        from carme_hub.training.session import user_jobs  # imported here: few runs have one
        from carme_hub.training.session.companions import NoHub, Refused

        try:
            hub = user_jobs.hub_of_run(self.batch_job())
            job = self.batch_job() | user_jobs.jobs_by_run(hub).get(self.id, {})
            if not job.get("id"):
                raise Refused("It is being submitted. Try it again in a moment.")
            user_jobs.cancel(hub, job["id"])
        except (NoHub, Refused) as error:
            raise control.RequestRefused(f"The batch job of {self.id} is not cancelled. {error}") from None
        kept = {name: job.get(name) for name in ("id", "job")}
        self.set_batch_job({**kept, "state": "ended", "said": "It was cancelled.", "cancelled": True})

    def _give_back(self, state: State) -> None:
        """Give back the companions of a run whose conductor was killed."""
        from carme_hub.training.session.companions import Hub, NoHub, Refused  # imported here: few runs have any

        try:
            hub = Hub.from_environ()
        except NoHub:
            raise control.RequestRefused(
                f"{self.id} still has companions. Stop it in its session; the hub's home page can give them back too."
            ) from None
        try:
            for companion in state["companions"]:
                with contextlib.suppress(Refused):  # it belongs to another session, which has ended
                    hub.close(companion)
        except NoHub as error:
            raise control.RequestRefused(
                f"{self.id} still has companions. {error} Stop the run again then; the hub's home page can give them "
                "back too."
            ) from None
        write_json(self.folder / "state.json", state | {"companions": [], "message": LOST_MESSAGE})

    def _has_conductor(self, state: State) -> bool:
        if not state.get("conductor") and not is_submitted(state) and time.time() < state["began"] + START_TIMEOUT:
            return True  # its conductor is starting
        return self.lock_held()

    def lock_held(self) -> bool:
        """Return whether a conductor has the lock of the run, which it keeps until its process has ended."""
        try:
            with (self.folder / "lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False


def is_submitted(state: State) -> bool:
    """Return whether a run is a batch job of its own."""
    return bool((state.get("asked") or {}).get("submit"))


def _where(id: str) -> str:
    return f"What it writes is in ~/.carme/runs/{id} on the cluster."


def _end_without_word(job: State, *, begun: bool) -> State:
    """Return how a run ended whose conductor has said nothing of it, by what the hub said of its batch job."""
    if not job.get("said"):
        return {"state": "lost", "message": LOST_MESSAGE}
    at = {"ended": float(job.get("at") or 0)}
    if job.get("cancelled"):
        said = "" if job["said"] == "It was cancelled." else f" {job['said']}"
        return {"state": "interrupted", "message": f"The batch job was cancelled.{said}", **at}
    before = "" if begun or job.get("continued") else " before its run began"
    return {"state": "failed", "message": f"The batch job ended{before}. {job['said']}", **at}


def _changed_since(file: Path, when: float) -> bool:
    try:
        return file.stat().st_mtime >= when - 0.05 and file.stat().st_size > 0
    except OSError:
        return False


def root() -> Path:
    """Return the folder of all runs."""
    return Path.home() / ".carme" / "runs"


def has_virtual_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the GPUs here are virtual ones of a sandbox; texts name them so."""
    return bool(environ.get("CARME_VIRTUAL_GPUS"))


def _newest_with_name(name: str) -> Path | None:
    """Return the newest run with a name that older runs had too: its folder is ``NAME-N``."""
    numbers = []
    for folder in root().glob(f"{glob.escape(name)}-*"):
        number = folder.name.removeprefix(f"{name}-")
        if number.isdecimal() and (folder / "state.json").is_file():
            with contextlib.suppress(OSError, ValueError, KeyError):
                if json.loads((folder / "asked.json").read_text())["asked"]["name"] == name:
                    numbers.append(int(number))
    return root() / f"{name}-{max(numbers)}" if numbers else None


def all_runs() -> list[Run]:
    """Return all runs, the newest first."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # there is no folder of runs yet
        for folder in root().iterdir():
            with contextlib.suppress(OSError):  # a folder that is being created or deleted
                (folder / "state.json").stat()
                found.append(((folder / "asked.json").stat().st_mtime, folder))
    return [Run(folder) for _, folder in sorted(found, reverse=True)]
