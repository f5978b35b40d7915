"""A run is shown in place while it goes on: in a notebook by one display that changes, in a terminal line by line."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from carme_hub.training.run import description
from carme_hub.training.run.description import View

from . import display

#: Seconds between two looks at a run; also how often its display may change.
LOOK = 0.25
#: Lines and bytes that are taken at a look where every line is printed.
EVERY_LINE = (1_000_000, 1 << 30)
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Live(Protocol):
    """Where a run is shown.

    Attributes:
        every: whether all ranks are, and not only the first ones. lines: as ``Tail``'s ``most`` and ``limit``.
    """

    @property
    def every(self) -> bool:
        """Return whether all ranks are shown."""

    @property
    def lines(self) -> tuple[int, int] | None:
        """Return how many lines and bytes of a rank are taken at a look, None = the newest few."""

    def show(self, view: View) -> None:
        """Show how it stands now."""

    def end(self, view: View) -> None:
        """Show how it ended; what is shown then stays."""


#: Lines that a terminal prints of who comes to the front: what it said before that was known.
CATCH_UP = 20


class Terminal:
    """Prints what rank 0 says as it comes, and how the run stands when that changes.

    Args:
        every: whether the lines of all ranks are printed, each with its rank before it.
    """

    def __init__(self, out: TextIO | None = None, said: TextIO | None = None, *, every: bool = False) -> None:
        self._out, self._said, self.every = out or sys.stdout, said or sys.stderr, every
        self._printed: dict[int, int] = {}
        self._told: tuple[str, str] = ("", "")

    @property
    def lines(self) -> tuple[int, int]:
        """Return that none is left out."""
        return EVERY_LINE

    def show(self, view: View) -> None:
        """Print what is new."""
        told = (description.state_word(view), str(view.state.get("message") or ""))
        if told != self._told and not view.ended:
            self._told = told
            self._say(f"{description.title(view)}: {', '.join(filter(None, (told[0].lower(), told[1])))}")
        self._print(view)

    def end(self, view: View) -> None:
        """Print the rest, and what it came to."""
        self._print(view)
        self._say(f"{description.title(view)}: {description.state_word(view).lower()}, {description.figures(view)}")
        if said := description.why(view):
            self._say(said)

    def _print(self, view: View) -> None:
        for rank, lines in sorted(view.lines.items()):
            # ``lines`` may have lost its oldest ones: they are counted from the first that ever came.
            count = getattr(lines, "count_of_all", len(lines))
            if rank != view.front and not self.every:
                self._printed[rank] = max(self._printed.get(rank, 0), count - CATCH_UP)
                continue
            new = count - self._printed.get(rank, 0)
            self._printed[rank] = count
            for line in list(lines)[-new:] if new > 0 else ():
                self._out.write(f"[{rank}] {line}\n" if self.every else f"{line}\n")
        self._out.flush()

    def _say(self, text: str) -> None:
        self._said.write(f"carme: {text}\n")
        self._said.flush()


class Notebook:
    """One display of a notebook, which changes in place.

    Args:
        publish: ``publish(data, {}, transient=…, update=…)``, as IPython's display publisher.
        ask: what a button does: called with "stop", "+1", …; returns what to say. None = there are no buttons.
    """

    every, lines = False, None

    def __init__(self, publish: Callable[..., None], ask: Callable[[str], str] | None = None) -> None:
        self._publish, self._ask = publish, ask
        self._id = f"carme-{uuid.uuid4().hex}"
        self._shown: Mapping[str, Any] | None = None
        self._widgets: Any = None

    def show(self, view: View) -> None:
        """Show it, in widgets where there are some: these keep what is unfolded, selected and in focus."""
        if self._widgets is None and self._shown is None and importlib.util.find_spec("ipywidgets") is not None:
            from .live_widgets import Widgets

            self._widgets = Widgets(self._ask)
            self._widgets.show(view)
            self._send({_WIDGET: self._widgets.view(), "text/plain": description.as_text(view)})
        elif self._widgets is not None:
            self._widgets.show(view)
        else:
            self._send({"text/html": display.as_html(view), "text/plain": description.as_text(view)})

    def end(self, view: View) -> None:
        """Leave a display that needs no kernel: it is what the saved notebook has."""
        self._send({"text/html": display.as_html(view), "text/plain": description.as_text(view)})
        if self._widgets is not None:
            self._widgets.close()

    def _send(self, data: Mapping[str, Any]) -> None:
        if data != self._shown:
            transient = {"display_id": self._id}
            self._publish(dict(data), {}, transient=transient, update=self._shown is not None)
            self._shown = data


class Tail(Sequence[str]):
    """The newest lines of a file that grows, and how many there have been in all.

    Args:
        most: lines that are kept. limit: bytes that are looked at the first time, from the file's end.
    """

    def __init__(self, path: str, most: int, limit: int = 1 << 20) -> None:
        self._path, self._most, self._limit = path, most, limit
        self._at, self._rest = 0, b""
        self._lines: list[str] = []
        self.count_of_all = 0

    def __len__(self) -> int:
        """Return how many lines are kept."""
        return len(self._lines)

    def __getitem__(self, at: Any) -> Any:
        """Return some of them."""
        return self._lines[at]

    def look(self, *, whole: bool = False) -> Tail:
        """Read what has come since the last look.

        Args:
            whole: whether the last line counts although its end has not come.
        """
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:  # noqa: PTH123
            size = file.seek(0, 2)
            if size - self._at > self._limit:
                self._at, self._rest = size - self._limit, b""
            file.seek(self._at)
            read = file.read(self._limit)
            self._at += len(read)
            *lines, self._rest = (self._rest + read).split(b"\n")
            if whole and self._rest:
                lines.append(self._rest)
                self._rest = b""
            self.count_of_all += len(lines)
            self._lines = (self._lines + [line.decode(errors="replace") for line in lines])[-self._most :]
        return self
