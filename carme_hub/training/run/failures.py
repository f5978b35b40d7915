"""The errors of a run. IPython shows the first failed rank's traceback in place of the call stack of this package."""

from __future__ import annotations

from typing import Any

from . import description


class CannotRun(RuntimeError):
    """A run cannot start; the message says what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython shows this in place of the call stack
        return [f"{type(self).__name__}: {self}"]


class RunFailed(RuntimeError):
    """A run failed.

    Attributes:
        run: its id. state: the final state, as in ``state.json``. folder: of its logs.
    """

    def __init__(self, state: dict[str, Any], folder: str) -> None:
        self.run, self.state, self.folder = str(state.get("id", "")), state, folder
        super().__init__(self.summary())

    def summary(self) -> str:
        """Return what happened, in one line."""
        word = description.STATE_LABELS.get(str(self.state.get("state")), "ended").lower()
        return f"{description.run_name(self.state)} {word}. {self.state.get('message') or ''}".rstrip()

    def lines(self) -> list[str]:
        """Return what happened, as lines for users."""
        return [f"{type(self).__name__}: {self}", f"The output of its ranks is in {self.folder}"]

    def _render_traceback_(self) -> list[str]:
        return self.lines()


class RankFailed(RunFailed):
    """A rank raised an error or ended by itself. Where no rank failed, as at the time limit, it is ``RunFailed``.

    Attributes:
        rank: the first one that failed. node: its node. type, message, traceback: of its error.
    """

    def __init__(self, state: dict[str, Any], folder: str) -> None:
        error = state.get("error") or {}
        self.rank, self.node = error.get("rank"), str(error.get("node") or "")
        self.type, self.message = str(error.get("type") or ""), str(error.get("message") or "")
        self.traceback = str(error.get("traceback") or "")
        super().__init__(state, folder)

    def summary(self) -> str:
        """Return which rank failed, on which node, and its error."""
        return description.failure(description.View(self.state, 0))

    def lines(self) -> list[str]:
        """Return the rank's own traceback, in IPython's style."""
        place = f"rank {self.rank}" + (f" on {self.node}" if self.node else "") + f" of {self.run}"
        kind = self.type.rpartition(".")[2] or "Error"
        lines = ["-" * 75, f"{kind}{place:>{max(len(place) + 2, 75 - len(kind))}}"]
        lines += [self.traceback.rstrip()] if self.traceback.strip() else [f"{kind}: {self.message}"]
        if others := description.echo_text(description.View(self.state, 0)):
            lines += ["", others]
        return [*lines, "", f"The output of the ranks is in {self.folder}"]


class Interrupted(KeyboardInterrupt):
    """You stopped a run, or you stopped following a detached one; the message says which."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def raise_for(state: dict[str, Any], folder: str) -> None:
    """Raise the error of a final state; return where the run finished."""
    if state.get("state") == "finished":
        return
    if state.get("state") == "interrupted":
        raise Interrupted(f"{description.run_name(state)} was stopped. The output of its ranks is in {folder}")
    rank = (state.get("error") or {}).get("rank")  # None: the time limit, or ranks that Slurm did not start
    raise (RunFailed if rank is None else RankFailed)(state, folder)
