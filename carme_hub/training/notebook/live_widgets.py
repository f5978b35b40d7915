"""A run in ipywidgets: only changes are sent, so folds, selection and focus stay as the user set them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from html import escape
from typing import Any

from carme_hub.training.run import description
from carme_hub.training.run.description import View

from . import display
from .display_style import STYLE

#: Word for ``ask``, label and tooltip of each button; whether runs that are not elastic have it.
BUTTONS = (
    ("stop", "Stop", "Stop all ranks; their output stays", True),
    ("stacks", "Stacks", "Show where each rank is; the run continues meanwhile", True),
    ("+1", "Add a rank", "Request GPUs for one more rank; the run continues meanwhile", False),
    ("-1", "Give one back", "Remove one rank and give its GPUs back", False),
)


class Widgets:
    """The widgets of one run.

    Args:
        ask: the handler of the buttons, as ``Notebook``'s.
    """

    def __init__(self, ask: Callable[[str], str] | None) -> None:
        import ipywidgets

        self._on_button, self._generation = ask, 0
        self._message, self._message_generation = _html(), 0
        self._head, self._table, self._log = _html(), _html(), _html("carme-log")
        self._others = ipywidgets.VBox(())
        self._logs: dict[int, tuple[Any, Any]] = {}  # the heading that unfolds a log, and the log
        self._all_logs: list[Any] = []  # all logs ever created: elastic runs lose ranks
        self._buttons = ipywidgets.HBox((), layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._box = ipywidgets.VBox(
            (_html(value=STYLE), self._head, self._buttons, self._message, self._table, self._log, self._others)
        )
        self._box.add_class("carme-run")

    def view(self) -> dict[str, Any]:
        """Return the widget for a notebook's display."""
        return {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}

    def show(self, view: View) -> None:
        """Show the current state."""
        self._generation = int(view.state.get("generation") or 0)
        if self._message.value and self._generation != self._message_generation:
            self._message.value = ""  # the requested ranks have come
        self._head.value = display.head_html(view)
        self._table.value = display.ranks_html(view)
        front = view.lines.get(view.front, ())
        file = description.log_file(view, view.front)
        self._log.value = display.log_html(front, description.FRONT_LINES, file) if view.ranks else ""
        self._log.layout.display = None if front else "none"
        self._show_others(view)
        if self._on_button is not None and not self._buttons.children:
            elastic = bool((view.state.get("asked") or {}).get("elastic"))
            self._buttons.children = tuple(
                self._button(self._on_button, *words) for words in BUTTONS if elastic or words[3]
            )

    def close(self) -> None:
        """Close the widgets, here and in the browser."""
        for widget in (*self._all_logs, *self._buttons.children, *self._box.children, self._box):
            for part in (widget, widget.layout, getattr(widget, "style", None)):  # each has a model of its own
                if part is not None:
                    part.close()

    def _show_others(self, view: View) -> None:
        others = [rank for rank in description.visible_ranks(view)[0] if int(rank.get("rank", 0)) != view.front]
        numbers = [int(rank["rank"]) for rank in others]
        if numbers != list(self._logs):
            for number in set(numbers) - set(self._logs):
                self._logs[number] = _html("carme-fold"), _html("carme-log")
                self._all_logs.extend(self._logs[number])
            self._logs = {number: self._logs[number] for number in numbers}
            self._others.children = tuple(part for both in self._logs.values() for part in both)
        for rank in others:
            fold, log = self._logs[int(rank["rank"])]
            # ipywidgets' accordion does not work by keyboard. A fold that is replaced closes, so its heading omits the
            # state.
            fold.value = f"<details><summary>{escape(description.summary({**rank, 'state': ''}))}</summary></details>"
            number = int(rank["rank"])
            log.value = display.log_html(view.lines.get(number, ()), file=description.log_file(view, number))

    def _button(self, ask: Callable[[str], str], word: str, text: str, tip: str, _: bool) -> Any:
        import ipywidgets

        button = ipywidgets.Button(description=text, tooltip=tip)

        def on_click(_: Any) -> None:
            # In a subshell, while the cell runs (JupyterLab 4.4, ipykernel 7).
            message, self._message_generation = ask(word), self._generation
            log = f'<pre class="carme-log" tabindex="0">{escape(message)}</pre>'
            self._message.value = log if "\n" in message else f'<p role="status">{escape(message)}</p>'

        button.on_click(on_click)
        # ipykernel 7.4 holds back messages on a comm that the cell has used until the cell ends (its comm.py: replies
        # go to the requester). A button replies to nothing, so its message goes to the subshell that the browser chose.
        with contextlib.suppress(AttributeError):
            del button.comm._reply_subshell_id
        return button


def _html(css: str = "", *, value: str = "") -> Any:
    import ipywidgets  # it is optional in the notebook's environment

    widget = ipywidgets.HTML(value=value)
    if css:
        widget.add_class(css)
    return widget
