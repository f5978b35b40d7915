"""A run is begun and looked on at to its end: the one way of the cell, of ``distributed`` and of the command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import Live, Notebook, Terminal
from carme_hub.training.run import control, results
from carme_hub.training.run import run_folder as _runs
from carme_hub.training.run.failures import CannotRun, Interrupted, raise_for
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import BadAsk, RunOptions
from carme_hub.training.templates import kernels

from .price import price_of


def tell(text: str) -> None:
    """Say a line to whoever runs this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def begin(asked: RunOptions, say: Callable[[str], None] = tell, **what: Any) -> Run:
    """Start a run of ``run_folder.create(asked, **what)``; what it costs beyond this session is said before.

    Args:
        say: says a line to whoever runs this.

    Raises:
        CannotRun: with what to do.
    """
    if asked.backend != "torchrun" and (lacks := kernels.missing(asked.backend)):
        raise CannotRun(lacks)  # a cell for torchrun may do without torch
    if asked.pull:
        results.check()  # here, and not after hours of training
    try:
        if said := price_of(asked):
            say(said)
        going = _runs.create(asked, **what)
        with _called_off(going):
            _runs.launch(going)
    except (NoRun, BadAsk, results.Rejected) as error:
        raise CannotRun(str(error)) from None
    return going


def end(run: Run, live: Live | None = None) -> dict[str, Any]:
    """Look on until a run ends, and return its state; errors as ``run``."""
    with _called_off(run):
        follower = Follower(run, live or shown_in(run))
    state = follower.follow()
    raise_for(state, str(run.folder))
    return state


@contextlib.contextmanager
def _called_off(run: Run) -> Iterator[None]:
    """Have a stop that comes before anybody looks on end the run, too; its conductor is no child of ours."""
    try:
        yield
    except KeyboardInterrupt:
        run.call_off()
        raise Interrupted(f"{run.id} was stopped before it began.") from None


def shown_in(run: Run) -> Live:
    """Return where a run is shown: in this notebook, or on this terminal."""
    shell = _shell()
    if shell is None or not hasattr(shell, "kernel"):
        return Terminal()
    # A button that is pressed while the cell runs is heard by a subshell (ipykernel 7), or only after the cell.
    heard = getattr(shell.kernel, "_supports_kernel_subshells", False)
    return Notebook(shell.display_pub.publish, _buttons(run) if heard else None)


def _buttons(run: Run) -> Callable[[str], str]:
    """Return what the buttons of a run's display do; each answers in words."""

    def ask(word: str) -> str:
        try:
            if word == "stop":
                run.ask("stop")
                return "Asked it to stop."
            said = run.resize(int(word))
            return str(said.get("message") or "Asked for it.")
        except (control.NoConductor, control.NotDone) as error:
            return str(error)

    return ask


def _shell() -> Any:
    """Return the IPython that this runs in, None where there is none."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
