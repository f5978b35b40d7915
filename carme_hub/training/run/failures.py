"""What goes wrong with a run is said in a few lines, the first rank's error first, and not by our own call stack."""

from __future__ import annotations

from typing import Any

from . import description


class CannotRun(RuntimeError):
    """A run cannot begin; the message says what to do."""

    def _render_traceback_(self) -> list[str]:  # what IPython shows instead of our call stack
        return [f"{type(self).__name__}: {self}"]


class RunFailed(RuntimeError):
    """A run did not end well.

    Attributes:
        run: its id. state: how it ended, as in ``state.json``. folder: where its logs are.
    """

    def __init__(self, state: dict[str, Any], folder: str) -> None:
        self.run, self.state, self.folder = str(state.get("id", "")), state, folder
        super().__init__(self.said())

    def said(self) -> str:
        """Return what happened in one line."""
        word = description.WORDS.get(str(self.state.get("state")), "ended").lower()
        return f"{description.name_of(self.state)} {word}. {self.state.get('message') or ''}".rstrip()

    def lines(self) -> list[str]:
        """Return what happened, for people."""
        return [f"{type(self).__name__}: {self}", f"All that its ranks printed is in {self.folder}"]

    def _render_traceback_(self) -> list[str]:
        return self.lines()


class RankFailed(RunFailed):
    """A rank raised an error, or ended by itself. What was the fault of none, as the time limit, is ``RunFailed``.

    Attributes:
        rank: the first that did. node: where it was. type, message: of its error. traceback: its text, there.
    """

    def __init__(self, state: dict[str, Any], folder: str) -> None:
        error = state.get("error") or {}
        self.rank, self.node = error.get("rank"), str(error.get("node") or "")
        self.type, self.message = str(error.get("type") or ""), str(error.get("message") or "")
        self.traceback = str(error.get("traceback") or "")
        super().__init__(state, folder)

    def said(self) -> str:
        """Return which rank failed, where, and by what."""
        return description.failure(description.View(self.state, 0))

    def lines(self) -> list[str]:
        """Return the rank's own traceback, as IPython shows one."""
        place = f"rank {self.rank}" + (f" on {self.node}" if self.node else "") + f" of {self.run}"
        kind = self.type.rpartition(".")[2] or "Error"
        lines = ["-" * 75, f"{kind}{place:>{max(len(place) + 2, 75 - len(kind))}}"]
        lines += [self.traceback.rstrip()] if self.traceback.strip() else [f"{kind}: {self.message}"]
        return [*lines, "", f"All that the ranks printed is in {self.folder}"]


class Interrupted(KeyboardInterrupt):
    """You stopped a run, or only the looking on at one that was started detached; the message says which."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def raise_for(state: dict[str, Any], folder: str) -> None:
    """Raise what a run that ended like this deserves; nothing where it finished."""
    if state.get("state") == "finished":
        return
    if state.get("state") == "interrupted":
        raise Interrupted(f"{description.name_of(state)} was stopped. What its ranks wrote is in {folder}")
    rank = (state.get("error") or {}).get("rank")  # None: the time limit, or ranks that Slurm did not start
    raise (RunFailed if rank is None else RankFailed)(state, folder)
