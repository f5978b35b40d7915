"""A run is shown while it goes on: in a notebook by one display that changes, in a terminal line by line."""

from __future__ import annotations

import contextlib
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol, TextIO

from carme_hub.training.run import description
from carme_hub.training.run.description import View

from . import display
from .display_output import DisplayOutput

#: Seconds between two updates of a display.
POLL_INTERVAL = 0.25
#: Lines and bytes to read per update where every line is printed.
ALL_LINES = (1_000_000, 1 << 30)
_SECONDS = re.compile(r" for \d+ s")


class RunDisplay(Protocol):
    """A place where a run is shown.

    Attributes:
        all_ranks: whether all ranks are shown, and not only the first ones. lines: as ``Tail``'s ``most`` and
        ``limit``.
    """

    @property
    def all_ranks(self) -> bool:
        """Return whether all ranks are shown."""

    @property
    def lines(self) -> tuple[int, int] | None:
        """Return the lines and bytes of a rank to read per update, None = the newest few."""

    def show(self, view: View) -> None:
        """Show the current state."""

    def display(self, output: DisplayOutput) -> None:
        """Show what rank 0 displays."""

    def end(self, view: View) -> None:
        """Show the final state, which stays."""


#: Lines that a terminal prints of a worker that becomes rank 0: its output from before that.
CATCH_UP_LINES = 20


class Terminal:
    """Prints the output of rank 0 as it comes, and the state of the run when it changes.

    Args:
        all_ranks: whether the lines of all ranks are printed, each with its rank before it.
    """

    def __init__(self, out: TextIO | None = None, status: TextIO | None = None, *, all_ranks: bool = False) -> None:
        self._out, self._status_out, self.all_ranks = out or sys.stdout, status or sys.stderr, all_ranks
        self._printed: dict[int, int] = {}
        self._last_status: tuple[str, str] = ("", "")
        self._stalled = ""

    @property
    def lines(self) -> tuple[int, int]:
        """Return the limits for all lines."""
        return ALL_LINES

    def show(self, view: View) -> None:
        """Print new lines and a changed state."""
        status_now = (description.state_label(view), str(view.state.get("message") or ""))
        if status_now != self._last_status and not view.ended:
            self._last_status = status_now
            self._say(f"{description.title(view)}: {', '.join(filter(None, (status_now[0].lower(), status_now[1])))}")
        stalled = str(view.state.get("stalled") or "")
        if (place := _SECONDS.sub("", stalled)) != self._stalled:  # said again when a rank is elsewhere
            self._stalled = place
            self._say(stalled or "the ranks go on again")
        self._print(view)

    def display(self, output: DisplayOutput) -> None:
        """Print its text."""
        text = output.data.get("text/plain")
        if text and not output.update:
            self._out.write(f"{''.join(text)}\n")
            self._out.flush()

    def end(self, view: View) -> None:
        """Print the last lines and the final state."""
        self._print(view)
        self._say(f"{description.title(view)}: {description.state_label(view).lower()}, {description.usage(view)}")
        if status := description.reason(view):
            self._say(status)

    def _print(self, view: View) -> None:
        for rank, lines in sorted(view.lines.items()):
            # ``lines`` may have lost its oldest ones, so lines are counted from the very first.
            count = getattr(lines, "total", len(lines))
            if rank != view.front and not self.all_ranks:
                self._printed[rank] = max(self._printed.get(rank, 0), count - CATCH_UP_LINES)
                continue
            new = count - self._printed.get(rank, 0)
            self._printed[rank] = count
            for line in list(lines)[-new:] if new > 0 else ():
                self._out.write(f"[{rank}] {line}\n" if self.all_ranks else f"{line}\n")
        self._out.flush()

    def _say(self, text: str) -> None:
        self._status_out.write(f"carme: {text}\n")
        self._status_out.flush()


class Notebook:
    """One display in a notebook, which changes in place.

    Args:
        publish: ``publish(data, {}, transient=…, update=…)``, as IPython's display publisher.
    """

    all_ranks, lines = False, None

    def __init__(self, publish: Callable[..., None]) -> None:
        self._publish = publish
        self._id = f"carme-{uuid.uuid4().hex}"
        self._shown: Mapping[str, Any] | None = None

    def show(self, view: View) -> None:
        """Show the current state."""
        bundle = display.as_bundle(view)
        if bundle != self._shown:
            self._publish(bundle, {}, transient={"display_id": self._id}, update=self._shown is not None)
            self._shown = bundle

    def display(self, output: DisplayOutput) -> None:
        """Show it below the run, as an output of its own."""
        transient = {"display_id": f"{self._id}-{output.id}"} if output.id else {}
        self._publish(dict(output.data), dict(output.metadata), transient=transient, update=output.update)

    def end(self, view: View) -> None:
        """Show the final state."""
        self.show(view)


class Tail(Sequence[str]):
    """The newest lines of a growing file, and the number of all its lines.

    Args:
        most: lines to keep. limit: bytes to read at first, from the file's end.
    """

    def __init__(self, path: str, most: int, limit: int = 1 << 20) -> None:
        self._path, self._most, self._limit = path, most, limit
        self._at, self._rest = 0, b""
        self._lines: list[str] = []
        self.total = 0

    def __len__(self) -> int:
        """Return the number of kept lines."""
        return len(self._lines)

    def __getitem__(self, at: Any) -> Any:
        """Return some of the lines."""
        return self._lines[at]

    def look(self, *, whole: bool = False) -> Tail:
        """Read new lines.

        Args:
            whole: whether an unfinished last line counts.
        """
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:  # noqa: PTH123
            size = file.seek(0, 2)
            if size - self._at > self._limit:
                self.total += _count_lines(file, self._at, size - self._limit)
                self._at, self._rest = size - self._limit, b""
            file.seek(self._at)
            read = file.read(self._limit)
            self._at += len(read)
            *lines, self._rest = (self._rest + read).split(b"\n")
            if whole and self._rest:
                lines.append(self._rest)
                self._rest = b""
            self.total += len(lines)
            self._lines = (self._lines + [line.decode(errors="replace") for line in lines])[-self._most :]
        return self


def _count_lines(file: IO[bytes], start: int, end: int) -> int:
    """Return the line ends between two bytes of a file."""
    file.seek(start)
    found = 0
    while (left := end - file.tell()) > 0 and (piece := file.read(min(left, 1 << 20))):
        found += piece.count(b"\n")
    return found
