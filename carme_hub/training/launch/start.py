"""Start a run and follow it to its end; the cell, ``distributed`` and the command all use this."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import Notebook, RunDisplay, Terminal
from carme_hub.training.run import keep, results
from carme_hub.training.run.failures import CannotRun, Interrupted, raise_for
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import InvalidOptions, RunOptions
from carme_hub.training.templates import kernels

from . import new_run
from .price import choose_nodes, price_of, wait_of


def print_line(text: str) -> None:
    """Print a line for the user."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def begin(options: RunOptions, say: Callable[[str], None] = print_line, **code: Any) -> Run:
    """Start a run of ``new_run.create(options, **what)``; print its price beyond the session first.

    Args:
        say: prints a line for the user.

    Raises:
        CannotRun: with what to do.
    """
    if options.backend != "torchrun" and (missing := kernels.missing_for(options.backend)):
        raise CannotRun(missing)  # cells for torchrun may not need torch
    if options.pull:
        results.require_cloudpickle()  # checked now, and not after hours of training
    try:
        new_run.check_code(code.get("cell"), code.get("script"))  # before the hub is asked for anything
        nodes_chosen = bool(options.nodes)
        options = choose_nodes(options)
        if price := price_of(options):
            say(price)
            if not options.wait and (text := wait_of(options, nodes_chosen=nodes_chosen)) and not _agrees(text):
                raise CannotRun("Nothing was requested. With --wait there is no such question.")
        for name in keep.apply():
            say(f"{name} is beyond your limits and was deleted. Undo: carme-hub runs restore {name}")
        run = new_run.create(options, **code)
        with _cancel_on_interrupt(run):
            new_run.launch(run)
    except (NoRun, InvalidOptions, results.Rejected) as error:
        raise CannotRun(str(error)) from None
    return run


def follow(run: Run, live: RunDisplay | None = None) -> dict[str, Any]:
    """Follow a run until it ends, and return its state; errors as ``distributed.run``."""
    with _cancel_on_interrupt(run):
        follower = Follower(run, live or choose_display())
    state = follower.follow()
    raise_for(state, str(run.folder))
    return state


@contextlib.contextmanager
def _cancel_on_interrupt(run: Run) -> Iterator[None]:
    """Cancel the run where the user interrupts before anybody follows it: its conductor is no child process."""
    try:
        yield
    except KeyboardInterrupt:
        run.cancel()
        raise Interrupted(f"{run.id} was stopped before it started.") from None


def choose_display() -> RunDisplay:
    """Return where a run is shown: in this notebook, or in this terminal."""
    shell = _shell()
    if shell is None or not hasattr(shell, "kernel"):
        return Terminal()
    return Notebook(shell.display_pub.publish)


def _agrees(text: str) -> bool:
    """Ask whether to wait. Where nobody can answer, as in a script or nbconvert, the answer is yes."""
    shell = _shell()
    if (shell is None or not hasattr(shell, "kernel")) and not sys.stdin.isatty():
        return True
    try:
        return input(f"{text} Wait for them? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, NotImplementedError):  # IPython's StdinNotImplementedError
        return True


def _shell() -> Any:
    """Return the IPython shell of this process, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
