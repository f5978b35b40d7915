"""A run in ipywidgets: only what has changed is sent, and what people have unfolded, selected or focused stays so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from html import escape
from typing import Any

from carme_hub.training.run import description
from carme_hub.training.run.description import View

from . import display
from .display_style import STYLE

#: Words for ``ask``, on the button, and about it; whether runs that are not elastic have it.
BUTTONS = (
    ("stop", "Stop", "Stop all ranks; what they have written stays", True),
    ("+1", "Add a rank", "Ask for GPUs for one rank more; the run goes on while it waits for them", False),
    ("-1", "Give one back", "Go on with one rank less, and give its GPUs back", False),
)


class Widgets:
    """The widgets of one run.

    Args:
        ask: what a button does, as ``Notebook``'s.
    """

    def __init__(self, ask: Callable[[str], str] | None) -> None:
        import ipywidgets

        self._ask, self._generation = ask, 0
        self._said, self._said_of = _html(), 0
        self._head, self._table, self._log = _html(), _html(), _html("carme-log")
        self._others = ipywidgets.VBox(())
        self._logs: dict[int, tuple[Any, Any]] = {}  # what is pressed to unfold a log, and the log
        self._made: list[Any] = []  # all logs that there ever were: elastic runs lose ranks
        self._buttons = ipywidgets.HBox((), layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._box = ipywidgets.VBox(
            (_html(value=STYLE), self._head, self._buttons, self._said, self._table, self._log, self._others)
        )
        self._box.add_class("carme-run")

    def view(self) -> dict[str, Any]:
        """Return what a notebook displays."""
        return {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}

    def show(self, view: View) -> None:
        """Show how it stands now."""
        self._generation = int(view.state.get("generation") or 0)
        if self._said.value and self._generation != self._said_of:
            self._said.value = ""  # what was asked for has come
        self._head.value = display.head_html(view)
        self._table.value = display.ranks_html(view)
        front = view.lines.get(view.front, ())
        self._log.value = display.log_html(front, description.FRONT) if view.ranks else ""
        self._log.layout.display = None if front else "none"
        self._show_others(view)
        if self._ask is not None and not self._buttons.children:
            elastic = bool((view.state.get("asked") or {}).get("elastic"))
            self._buttons.children = tuple(self._button(self._ask, *words) for words in BUTTONS if elastic or words[3])

    def close(self) -> None:
        """Forget the widgets, here and in the browser."""
        for widget in (*self._made, *self._buttons.children, *self._box.children, self._box):
            for part in (widget, widget.layout, getattr(widget, "style", None)):  # each is a model of its own
                if part is not None:
                    part.close()

    def _show_others(self, view: View) -> None:
        others = [rank for rank in description.shown(view)[0] if int(rank.get("rank", 0)) != view.front]
        numbers = [int(rank["rank"]) for rank in others]
        if numbers != list(self._logs):
            for number in set(numbers) - set(self._logs):
                self._logs[number] = _html("carme-fold"), _html("carme-log")
                self._made.extend(self._logs[number])
            self._logs = {number: self._logs[number] for number in numbers}
            self._others.children = tuple(part for both in self._logs.values() for part in both)
        for rank in others:
            fold, log = self._logs[int(rank["rank"])]
            # ipywidgets' accordion is not for the keyboard. A fold that is sent anew closes, so no state is said here.
            fold.value = f"<details><summary>{escape(description.summary({**rank, 'state': ''}))}</summary></details>"
            log.value = display.log_html(view.lines.get(int(rank["rank"]), ()))

    def _button(self, ask: Callable[[str], str], word: str, text: str, tip: str, _: bool) -> Any:
        import ipywidgets

        button = ipywidgets.Button(description=text, tooltip=tip)

        def pressed(_: Any) -> None:
            # In a subshell, beside the cell that runs (JupyterLab 4.4, ipykernel 7).
            said, self._said_of = ask(word), self._generation
            self._said.value = f'<p role="status">{escape(said)}</p>'

        button.on_click(pressed)
        # What a browser says on a comm that the cell has used, ipykernel 7.4 keeps for after the cell (its comm.py:
        # replies belong to who asked). A button asks nothing, so it goes where the browser sends it: beside the cell.
        with contextlib.suppress(AttributeError):
            del button.comm._reply_subshell_id
        return button


def _html(css: str = "", *, value: str = "") -> Any:
    import ipywidgets  # of the notebook's environment, which need not have it

    widget = ipywidgets.HTML(value=value)
    if css:
        widget.add_class(css)
    return widget
