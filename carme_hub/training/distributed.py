"""``from carme_hub.training import distributed``: functions on many GPUs, and runs that are found again::

    results = distributed.run(train, {"epochs": 3}, n=4)     # one result for each rank
    run = distributed.start(train, n=4, name="long")         # goes on without this notebook
    distributed.runs()                                       # a table of all of them

Options are those of ``%%distributed``, with ``_`` for ``-``: ``distributed.run(train, n=4, time="30m")``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from carme_hub.training.launch.start import begin, end, shown_in
from carme_hub.training.notebook import display
from carme_hub.training.notebook.follow import Follower
from carme_hub.training.run import control, description, results
from carme_hub.training.run import run_folder as _runs
from carme_hub.training.run.failures import CannotRun, Interrupted, RankFailed, RunFailed
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import BadAsk, RunOptions, asked_by

__all__ = [
    "CannotRun",
    "Interrupted",
    "RankFailed",
    "Run",
    "RunFailed",
    "benchmark",
    "log",
    "resize",
    "run",
    "runs",
    "start",
    "stop",
    "watch",
]


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    n: int,
    limit: int = results.LIMIT,
    **options: Any,
) -> list[Any]:
    """Call a function in ``n`` ranks, wait for all of them, and return what each returned, by its rank.

    Args:
        fn: a function of this notebook, or of a module. args: its arguments, or a ``dict`` of named ones.
        kwargs: named arguments. n: ranks. limit: the most bytes of the arguments, and of each result.
        options: as ``%%distributed``'s: ``nodes``, ``gpus_per_task``, ``backend``, ``elastic``, ``time``, ``name``.

    Raises:
        RankFailed: a rank raised an error; it has that rank's traceback. RunFailed: the run ended in another way, as
            by its time limit. Interrupted: by you. CannotRun: it did not begin, or a result is not to be had.
    """
    going = begin(_asked(n, options), call=_call(fn, args, kwargs), limit=limit)
    state = end(going)
    # An elastic run names more ranks than there were at its end, and those who left returned nothing.
    ranks = going.returned() if state["asked"]["elastic"] else range(len(state["ranks"]))
    return [going.result(rank) for rank in ranks]


def start(
    fn: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    n: int,
    limit: int = results.LIMIT,
    **options: Any,
) -> Run:
    """Call a function in ``n`` ranks, and return at once. The run goes on when this kernel ends; see ``run``."""
    return begin(_asked(n, {**options, "detach": True}), call=_call(fn, args, kwargs), limit=limit)


def runs(*, live: bool = False) -> Table:
    """Return all runs, the newest first.

    Args:
        live: whether only those that have not ended.
    """
    return Table([each for each in _runs.all_runs() if not live or _live(each)])


def watch(run: Run | str = "") -> dict[str, Any]:
    """Look on at a run until it ends, and return its state. Without a name: the newest, of this session if it has any.

    Raises:
        Interrupted: this was, and the run goes on, for it was started detached. Another ends with its cell.
    """
    found = _one(run)
    return RunStatus(Follower(found, shown_in(found)).follow())


def log(run: Run | str = "", rank: int = 0) -> str:
    """Return what a rank has printed. Without a name: of the newest, as ``watch``."""
    return _one(run).log(rank)


def stop(run: Run | str = "") -> dict[str, Any]:
    """End a run, and return its state. Without a name: the newest of this session that goes on.

    Raises:
        CannotRun: what it had beside the session could not be given back yet.
    """
    try:
        return RunStatus(_one(run, live=True).stop())
    except (NoRun, control.NotDone) as error:
        raise CannotRun(str(error)) from None


def resize(change: int, run: Run | str = "") -> dict[str, Any]:
    """Add ranks to an elastic run, or take some away: ``resize(+2)``, ``resize(-1)``.

    GPUs for more are those of a companion, a job of this session; the run goes on while it waits for them.

    Args:
        change: how many more, or less. run: which; without a name the newest of this session that goes on.

    Raises:
        CannotRun: it is not elastic, or that would be too many or too few.
    """
    found = _one(run, live=True)
    try:
        said = found.state()
        if said["state"] in _runs.ENDED:
            word = description.WORDS[said["state"]].lower()
            raise CannotRun(f"{found.id} has ended ({word}), so its ranks stay as they were. Start it anew.")
        return RunStatus(found.resize(change))
    except control.NoConductor as error:
        raise CannotRun(f"{error} Where it goes on in another session of yours, change it there.") from None
    except (NoRun, control.NotDone) as error:
        raise CannotRun(str(error)) from None


def benchmark(*args: Any, **kwargs: Any) -> Any:
    """Measure how a training scales; see ``carme_hub.training.scaling.benchmark.benchmark``."""
    from carme_hub.training.scaling import benchmark as scaling  # most notebooks measure nothing

    return scaling.benchmark(*args, **kwargs)


def _asked(n: int, options: Mapping[str, Any]) -> RunOptions:
    """Return what options say, read as ``%%distributed`` reads them."""
    backend = os.environ.get("CARME_BACKEND", "")
    words = [*(["--backend", backend] if backend else []), "-n", str(n)]
    for name, value in options.items():
        word = f"--{name.replace('_', '-')}"
        if name in ("push", "pull", "dry_run", "requeue", "n"):
            raise CannotRun(f"{name}: a function has arguments and returns something; {name} is for %%distributed.")
        if value is True:
            words.append(word)
        elif value not in (None, False, "", 0) or (name == "gpus_per_task" and value == 0):
            said = ":".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            words.append(f"{word}={said}")
    try:
        return asked_by(words)
    except BadAsk as error:
        raise CannotRun(str(error)) from None


def _call(fn: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    if isinstance(args, Mapping) and kwargs is None:
        args, kwargs = (), args
    if not callable(fn):
        raise CannotRun(f"{fn!r:.60} is no function.")
    return fn, tuple(args), dict(kwargs or {})


def _one(run: Run | str, *, live: bool = False) -> Run:
    if isinstance(run, Run):
        return run
    if run:
        try:
            return Run.load(run)
        except NoRun as error:
            raise CannotRun(str(error)) from None
    session, elsewhere = os.environ.get("CARME_SESSION", ""), None
    for each in _runs.all_runs():
        with contextlib.suppress(NoRun):  # it was deleted in between
            state = each.state()
            if live and state["state"] not in _runs.LIVE:
                continue
            if state["session"] == session:
                return each
            elsewhere = elsewhere or each
    if elsewhere is None:
        raise CannotRun("No run goes on." if live else "There is no run yet.")
    if live:  # nobody means what another session does without naming it
        raise CannotRun(f"No run of this session goes on. To act on {elsewhere.id}, of another one, name it.")
    return elsewhere


def _live(run: Run) -> bool:
    try:
        return run.state()["state"] in _runs.LIVE
    except NoRun:
        return False


class RunStatus(dict[str, Any]):
    """How a run stands, or what its conductor answered; a notebook shows it in words."""

    def __repr__(self) -> str:
        """Return the words."""
        if "state" not in self:
            return str(self.get("message") or "It was asked for.")
        view = description.View(self, time.time())
        how = f"{description.name_of(self)}: {description.state_word(view).lower()}, {description.figures(view)}"
        return f"{how}. {description.why(view)}".rstrip(" .") + "."


class Table(Sequence[Run]):
    """Runs, which a notebook shows as a table."""

    def __init__(self, found: list[Run]) -> None:
        self._runs = found

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._runs)

    def __getitem__(self, at: Any) -> Any:
        """Return one, or some."""
        return Table(self._runs[at]) if isinstance(at, slice) else self._runs[at]

    def __iter__(self) -> Iterator[Run]:
        """Go through them."""
        return iter(self._runs)

    def __repr__(self) -> str:
        """Return them as a table of text."""
        return description.runs_text(self.states(), time.time())

    def _repr_html_(self) -> str:
        return display.runs_html(self.states(), time.time())

    def states(self) -> list[dict[str, Any]]:
        """Return how each stands, but for those that have been deleted."""
        found = []
        for each in self._runs:
            with contextlib.suppress(NoRun):
                found.append(each.state())
        return found
