"""Start a run and follow it to its end; the cell, ``distributed`` and the command all use this."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import Notebook, RunDisplay, Terminal
from carme_hub.training.run import keep, results
from carme_hub.training.run.failures import CannotRun, Interrupted, raise_for
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import InvalidOptions, RunOptions
from carme_hub.training.session.outside import Access
from carme_hub.training.templates import kernels

from . import new_run
from .price import NoQuote, choose_nodes, price_of, wait_of
from .submit import submit


def print_line(text: str) -> None:
    """Print a line for the user."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def begin(
    options: RunOptions, say: Callable[[str], None] = print_line, access: Access | None = None, **code: Any
) -> Run:
    """Start a run of ``new_run.create(options, **what)``; print its price beyond the session first.

    Args:
        say: prints a line for the user. access: to the hub from outside of a session, which has batch jobs alone.

    Raises:
        CannotRun: with what to do.
    """

    def create(chosen: RunOptions, price: str) -> Run:
        return new_run.create(chosen, given=options, price=price, outside=access is not None, **code)

    return _begin(options, create, say, code, access)


def begin_again(old: Run, options: RunOptions, say: Callable[[str], None] = print_line, **changes: Any) -> Run:
    """Start a run that repeats another one; ``changes`` as ``new_run.create_again`` takes them. Errors as ``begin``."""

    def create(chosen: RunOptions, price: str) -> Run:
        return new_run.create_again(old, chosen, given=options, price=price, **changes)

    return _begin(options, create, say, {})


def _begin(
    options: RunOptions,
    create: Callable[[RunOptions, str], Run],
    say: Callable[[str], None],
    code: Mapping[str, Any],
    access: Access | None = None,
) -> Run:
    """Start a run.

    Args:
        create: creates it, of the options with its nodes, and what was said of its price. code: to be checked before.
        access: as for ``begin``; what is installed here says nothing of the image then.
    """
    if access is None and options.backend != "torchrun" and (missing := kernels.missing_for(options.backend)):
        raise CannotRun(missing)  # cells for torchrun may not need torch
    if options.pull:
        results.require_cloudpickle()  # checked now, and not after hours of training
    try:
        new_run.check_code(code.get("cell"), code.get("script"))  # before the hub is asked for anything
        if options.submit:
            return submit(options, create, say, access=access)
        asked, options = options, choose_nodes(options)
        if price := price_of(options):
            say(price)
            if not options.wait and _can_answer():
                with contextlib.suppress(NoQuote):  # it is only advice
                    _confirm_wait(wait_of(options, asked))
        for name in keep.apply():
            say(f"{name} is beyond your limits and was deleted. Undo: carme-hub runs restore {name}")
        run = create(options, price)
        with _cancel_on_interrupt(run):
            new_run.launch(run)
    except (NoRun, InvalidOptions, results.Rejected) as error:
        raise CannotRun(str(error)) from None
    return run


def continues_text(run: Run, options: RunOptions) -> str:
    """Return what is said of a run that nobody waits for: how to see and to stop it."""
    how = "is a batch job and outlives this session" if options.submit else "continues without this notebook"
    return (
        f"{run.id} {how}. distributed.watch({run.id!r}) shows it, distributed.stop({run.id!r}) stops it, and "
        f"distributed.runs() lists all runs. Its files: {run.folder}"
    )


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


def _can_answer() -> bool:
    """Return whether somebody is there to answer: at a notebook, or at a terminal that this process has."""
    shell = _shell()
    if shell is not None and hasattr(shell, "kernel"):
        return True
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # closed, or none
        return False


def _confirm_wait(text: str) -> None:
    """Ask whether to wait, if there is something to wait for.

    Raises:
        CannotRun: the answer is no.
    """
    try:
        if not text or input(f"{text} Wait for them? [y/N] ").strip().lower() in ("y", "yes"):
            return
    except (EOFError, OSError, NotImplementedError):  # nbconvert: IPython's StdinNotImplementedError
        return
    raise CannotRun("Nothing was requested. With --wait there is no such question.")


def _shell() -> Any:
    """Return the IPython shell of this process, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
