"""``from carme_hub.training import distributed``: run functions on many GPUs, and find runs again::

    results = distributed.run(train, {"epochs": 3}, n=4)     # one result for each rank
    run = distributed.start(train, n=4, name="long")         # continues without this notebook
    distributed.runs()                                       # a table of all runs

The options are those of ``%%distributed``, with ``_`` for ``-``: ``distributed.run(train, n=4, time="30m")``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from carme_hub.training.launch.new_run import given_options
from carme_hub.training.launch.start import begin, begin_again, choose_display, follow
from carme_hub.training.notebook import display
from carme_hub.training.notebook.follow import Follower
from carme_hub.training.records import marks
from carme_hub.training.records.batch_jobs import Refresher
from carme_hub.training.records.comparison import Comparison
from carme_hub.training.run import control, description, keep, results
from carme_hub.training.run import run_folder as _runs
from carme_hub.training.run.failures import CannotRun, Interrupted, RankFailed, RunFailed
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, parse_changes, parse_options

__all__ = [
    "CannotRun",
    "Interrupted",
    "RankFailed",
    "Run",
    "RunFailed",
    "benchmark",
    "compare",
    "delete",
    "log",
    "mark",
    "repeat",
    "resize",
    "restore",
    "run",
    "runs",
    "stacks",
    "start",
    "stop",
    "watch",
]


_refresher = Refresher()


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    n: int,
    limit: int = results.LIMIT,
    **options: Any,
) -> list[Any]:
    """Call a function in ``n`` ranks, wait for all of them, and return their results in the order of the ranks.

    Args:
        fn: a function of this notebook or of a module. args: its arguments, or a ``dict`` of named ones.
        kwargs: named arguments. n: ranks. limit: the most bytes of the arguments, and of each result.
        options: as ``%%distributed``'s: ``nodes``, ``gpus_per_task``, ``backend``, ``elastic``, ``time``, ``name``,
            ``env`` (names, or a ``dict`` with values), ``no_env``.

    Raises:
        RankFailed: a rank raised an error; it has that rank's traceback. RunFailed: the run ended in another way, such
            as by its time limit. Interrupted: you stopped it. CannotRun: it did not start, or a result is missing.
    """
    started = begin(_run_options(n, options), call=_call(fn, args, kwargs), limit=limit)
    state = follow(started)
    # The state of an elastic run lists more ranks than there were at its end; those that left have no result.
    ranks = started.returned() if state["asked"]["elastic"] else range(len(state["ranks"]))
    return [started.result(rank) for rank in ranks]


def start(
    fn: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    n: int,
    limit: int = results.LIMIT,
    **options: Any,
) -> Run:
    """Call a function in ``n`` ranks, and return at once; the run continues when this kernel ends. See ``run``."""
    return begin(_run_options(n, {**options, "detach": True}), call=_call(fn, args, kwargs), limit=limit)


def runs(*, live: bool = False, tag: str = "", starred: bool = False) -> Table:
    """Return all runs, the newest first.

    Args:
        live: only runs that have not ended. tag: only those with this tag. starred: only those with a star.
    """
    found = _runs.all_runs()
    _refresher.refresh(found)
    if tag or starred:
        known = ((each, marks.read_marks(each)) for each in found)
        found = [each for each, its in known if (not tag or tag in its.tags) and (its.star or not starred)]
    return Table([each for each in found if not live or _is_live(each)])


def watch(run: Run | str = "") -> dict[str, Any]:
    """Follow a run until it ends, and return its state. Default: the newest run, of this session if it has any.

    Raises:
        Interrupted: the cell was stopped; a detached run continues, any other ends with its cell.
    """
    found = _find_run(run)
    return RunStatus(Follower(found, choose_display()).follow())


def log(run: Run | str = "", rank: int = 0) -> str:
    """Return the output of a rank. Default: of the newest run, as ``watch``."""
    return _find_run(run).log(rank)


def stacks(run: Run | str = "") -> str:
    """Return where each rank of a live run is: the stacks of all its threads; the ranks go on meanwhile.

    Default: the newest live run of this session.

    Raises:
        CannotRun: it has ended, or belongs to another session.
    """
    try:
        found = _find_run(run, live=True).stacks()
    except (NoRun, control.NoConductor, control.RequestRefused) as error:
        raise CannotRun(str(error)) from None
    return description.stacks_text(found)


def stop(run: Run | str = "") -> dict[str, Any]:
    """Stop a run, and return its state. Default: the newest live run of this session.

    Raises:
        CannotRun: its companions could not be given back yet.
    """
    try:
        return RunStatus(_find_run(run, live=True).stop())
    except (NoRun, control.RequestRefused) as error:
        raise CannotRun(str(error)) from None


def delete(*runs: Run | str) -> list[str]:
    """Delete runs that have ended, and return the names by which ``restore`` undoes that for a week.

    Raises:
        CannotRun: one of them has not ended; the others are deleted. Or there is none of this name.
    """
    if not runs or not all(runs):
        raise CannotRun("Which runs? Name each of them.")
    found, names, problems = [_find_run(each) for each in runs], [], []
    for each in found:
        try:
            names.append(keep.delete(each))
        except (NoRun, keep.CannotDelete) as error:
            problems.append(str(error))
    if problems:
        raise CannotRun(" ".join(problems))
    return names


def restore(name: str) -> Run:
    """Restore a deleted run.

    Raises:
        CannotRun: there is none, or another run has its name now.
    """
    try:
        return keep.restore(name)
    except keep.CannotDelete as error:
        raise CannotRun(str(error)) from None


def compare(*runs: Run | str, everything: bool = False) -> Comparison:
    """Compare runs: what differs in their options, parameters, code, packages and results. Of one run: all of it.

    Args:
        everything: whether what is the same is shown too.

    Raises:
        CannotRun: there is none of a name.
    """
    try:
        return Comparison([_find_run(each) for each in runs or ("",)], everything=everything)
    except (NoRun, OSError) as error:
        raise CannotRun(f"A run cannot be read: {error}") from None


def repeat(
    run: Run | str = "", *, args: Sequence[str] | None = None, changed_code: bool = False, **options: Any
) -> Run:
    """Run the same code, arguments and variables again, wait for the end, and return the new run.

    Args:
        run: default: the newest, as ``watch``. args: of its script, module or command; None = the same.
        changed_code: whether a script that has changed since is run as it is now.
        options: those that change, such as ``n=8``; with ``detach=True`` nothing is waited for.

    Raises:
        RankFailed, RunFailed: as ``run``. CannotRun: it cannot be repeated; the message says why.
    """
    old = _find_run(run)
    words = _words(options)
    try:
        changed, _, _ = parse_changes(words, given_options(old), {})
        changed = replace(changed, **_switched_off(options))
    except (NoRun, InvalidOptions) as error:
        raise CannotRun(str(error)) from None
    new = begin_again(old, changed, args=args, changed_code=changed_code)
    if not (changed.detach or changed.submit):
        follow(new)
    return new


def mark(
    run: Run | str = "",
    *,
    star: bool | None = None,
    tag: str | Collection[str] = (),
    untag: str | Collection[str] = (),
    note: str | None = None,
) -> marks.Marks:
    """Give a run a star, tags or a note, or take them away; return all of its marks. Default: the newest run.

    Raises:
        CannotRun: a tag or the note is not allowed.
    """
    add, remove = ((each,) if isinstance(each, str) else each for each in (tag, untag))
    try:
        return marks.mark(_find_run(run), star=star, tag=add, untag=remove, note=note)
    except (marks.BadMark, OSError) as error:
        raise CannotRun(str(error)) from None


def resize(change: int, run: Run | str = "") -> dict[str, Any]:
    """Add ranks to an elastic run, or remove some: ``resize(+2)``, ``resize(-1)``.

    Where the session has no free GPUs, each new rank gets a companion job; the run continues while it waits for them.

    Args:
        change: how many ranks to add, or to remove. run: default: the newest live run of this session.

    Raises:
        CannotRun: the run is not elastic, or that would be too many or too few ranks.
    """
    found = _find_run(run, live=True)
    try:
        state = found.state()
        if state["state"] in _runs.ENDED:
            word = description.STATE_LABELS[state["state"]].lower()
            raise CannotRun(f"{found.id} has ended ({word}), so its ranks cannot change. Start it again.")
        return RunStatus(found.resize(change))
    except control.NoConductor as error:
        raise CannotRun(f"{error} If it runs in another session of yours, resize it there.") from None
    except (NoRun, control.RequestRefused) as error:
        raise CannotRun(str(error)) from None


def benchmark(*args: Any, **kwargs: Any) -> Any:
    """Measure how a training scales; see ``carme_hub.training.scaling.benchmark.benchmark``."""
    from carme_hub.training.scaling import benchmark as scaling  # imported here: most notebooks measure nothing

    return scaling.benchmark(*args, **kwargs)


def _run_options(n: int, options: Mapping[str, Any]) -> RunOptions:
    """Return the options, parsed as those of ``%%distributed``."""
    backend = os.environ.get("CARME_BACKEND", "")
    words = [*(["--backend", backend] if backend else []), "-n", str(n), *_words(options)]
    try:
        return parse_options(words)
    except InvalidOptions as error:
        raise CannotRun(str(error)) from None


def _switched_off(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of options that are given as nothing, such as ``nodes=0``, with their defaults."""
    names = {"n": "ranks", "time": "seconds"}
    defaults = {each.name: each.default for each in fields(RunOptions)}
    found = {names.get(name, name) for name, value in options.items() if value in (None, False, "", 0)}
    return {name: defaults[name] for name in found & defaults.keys() if name not in ("ranks", "gpus_per_task", "env")}


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options as the words of a line."""
    words = []
    for name, value in options.items():
        word = "-n" if name == "n" else f"--{name.replace('_', '-')}"
        if name in ("push", "pull", "dry_run", "requeue"):
            raise CannotRun(f"{name}: {name} is for %%distributed; a function has arguments and a result.")
        if name == "env":
            if isinstance(value, str):
                raise CannotRun(f"env={value!r}: give a list of names, or a dict of names and values.")
            named = [f"{key}={text}" for key, text in value.items()] if isinstance(value, Mapping) else value
            words += [each for text in named for each in (word, str(text))]
        elif value is True:
            words.append(word)
        elif value not in (None, False, "", 0) or (name == "gpus_per_task" and value == 0):
            text = ":".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            words += [word, text] if word == "-n" else [f"{word}={text}"]
    return words


def _call(fn: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    if isinstance(args, Mapping) and kwargs is None:
        args, kwargs = (), args
    if not callable(fn):
        raise CannotRun(f"{fn!r:.60} is not a function.")
    return fn, tuple(args), dict(kwargs or {})


def _find_run(run: Run | str, *, live: bool = False) -> Run:
    if isinstance(run, Run):
        return run
    if run:
        try:
            return Run.load(run)
        except NoRun as error:
            raise CannotRun(str(error)) from None
    session, elsewhere = os.environ.get("CARME_SESSION", ""), None
    for each in _runs.all_runs():
        with contextlib.suppress(NoRun):  # its folder was deleted meanwhile
            state = each.state()
            if live and state["state"] not in _runs.LIVE:
                continue
            if state["session"] == session:
                return each
            elsewhere = elsewhere or each
    if elsewhere is None:
        raise CannotRun("No run is live." if live else "There is no run yet.")
    if live:  # a run of another session must be named
        raise CannotRun(f"No run of this session is live. To act on {elsewhere.id} of another session, name it.")
    return elsewhere


def _is_live(run: Run) -> bool:
    try:
        return run.state()["state"] in _runs.LIVE
    except NoRun:
        return False


class RunStatus(dict[str, Any]):
    """The state of a run, or the answer of its conductor; a notebook shows it as text."""

    def __repr__(self) -> str:
        """Return it as text."""
        if "state" not in self:
            return str(self.get("message") or "Resize requested.")
        view = description.View(self, time.time())
        how = f"{description.run_name(self)}: {description.state_label(view).lower()}, {description.usage(view)}"
        return f"{how}. {description.reason(view)}".rstrip(" .") + "."


class Table(Sequence[Run]):
    """A list of runs, which a notebook shows as a table."""

    def __init__(self, found: list[Run]) -> None:
        self._runs = found

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def __getitem__(self, at: Any) -> Any:
        """Return one run, or a table of some."""
        return Table(self._runs[at]) if isinstance(at, slice) else self._runs[at]

    def __iter__(self) -> Iterator[Run]:
        """Iterate over the runs."""
        return iter(self._runs)

    def __repr__(self) -> str:
        """Return the table as text."""
        return description.runs_text(self.states(), time.time())

    def _repr_html_(self) -> str:
        return display.runs_html(self.states(), time.time())

    def states(self) -> list[dict[str, Any]]:
        """Return the state of each run whose folder still exists."""
        found = []
        for each in self._runs:
            with contextlib.suppress(NoRun):
                found.append(each.state())
        return found
