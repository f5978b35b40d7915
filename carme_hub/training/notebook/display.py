"""The HTML of a run for a notebook, made from ``state.json`` and the ranks' logs. No input or output.

The page is readable without its colours and style sheet, which JupyterLab removes from an untrusted notebook. The
output of ranks is arbitrary text, so all of it is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from carme_hub.training.run.description import (
    FOLDED_LINES,
    FRONT_LINES,
    RUN_COLUMNS,
    View,
    as_text,
    earlier_text,
    echo_text,
    environment_text,
    failure,
    log_file,
    pluralize,
    progress,
    rank_cells,
    rank_columns,
    rank_label,
    readable,
    reason,
    restarts_text,
    run_cells,
    run_name,
    speed,
    state_label,
    summary,
    title,
    usage,
    visible_ranks,
)

from .display_style import STYLE

#: Of the data that the renderer in JupyterLab shows.
MEDIA_TYPE = "application/vnd.carme.run+json"
#: The most lines of a rank that notebooks without the renderer show before the end.
LIVE_LINES = 40
#: Word of a request, label and tooltip of each button; whether runs that are not elastic have it. The page answers
#: "shell" itself, the server the others.
BUTTONS = (
    ("stop", "Stop", "Stop all ranks; their output stays", True),
    ("stacks", "Stacks", "Show where each rank is; the run continues meanwhile", True),
    ("shell", "Shell", "Open a terminal in a rank; the run continues meanwhile", True),
    ("+1", "Add a rank", "Request GPUs for one more rank; the run continues meanwhile", False),
    ("-1", "Give one back", "Remove one rank and give its GPUs back", False),
)
_MARKS = {"finished": "✓", "failed": "✗", "interrupted": "■", "lost": "✗", "waiting": "…", "starting": "…"}


def as_bundle(view: View) -> dict[str, Any]:
    """Return the run by media type: for JupyterLab's renderer, for other notebooks, and for terminals.

    It is sent up to four times a second, so the last two have few lines until the run has ended.
    """
    few = view if view.ended else replace(view, lines={rank: list(of)[-LIVE_LINES:] for rank, of in view.lines.items()})
    return {MEDIA_TYPE: as_data(view), "text/html": as_html(few), "text/plain": as_text(few)}


def head_html(view: View) -> str:
    """Return the head: state, bar, time used, and the error that ended the run."""
    state = str(view.state.get("state") or "starting")
    mark = _MARKS.get(state, "▶")
    parts = [
        f'<p><span class="carme-state"><span aria-hidden="true">{mark}</span> {escape(state_label(view))}</span> '
        f"{escape(title(view))}</p>"
    ]
    if text := reason(view):
        parts.append(f'<p class="carme-bad">{escape(text)}</p>' if failure(view) else f"<p>{escape(text)}</p>")
    if text := echo_text(view):
        parts.append(f'<p class="carme-dim">{escape(text)}</p>')
    if text := restarts_text(view):
        parts.append(f'<p class="carme-dim">{escape(text)}</p>')
    done, total = progress(view)
    if total:
        parts.append(f'<progress aria-label="Steps" value="{min(done, total)}" max="{total}">{done}/{total}</progress>')
    counts = ". ".join(filter(None, (_capital(speed(view)), _capital(usage(view)))))
    parts.append(f'<p class="carme-dim">{escape(counts)}</p>')
    return "".join(parts)


def ranks_html(view: View) -> str:
    """Return the table of ranks, without empty columns."""
    ranks, more = visible_ranks(view)
    if not ranks:
        return ""
    rows = [rank_cells(rank) for rank in ranks]
    words = rank_columns(view)
    keep = [at for at in range(len(words)) if any(row[at] for row in rows)]
    head = "".join(f'<th scope="col">{words[at]}</th>' for at in keep)
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(row[at])}</th>' if at == 0 else f"<td>{escape(row[at])}</td>" for at in keep
        )
        + "</tr>"
        for row in rows
    )
    rest = f'<p class="carme-dim">and {pluralize(more, "rank")} more</p>' if more else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="carme-wide" tabindex="0" role="region" aria-label="Ranks">{table}</div>{rest}'


def log_html(lines: Sequence[str], most: int = FOLDED_LINES, file: str = "") -> str:
    """Return the newest lines of a rank; a box of class ``carme-log`` scrolls to the newest.

    Args:
        file: path of the whole log, which is named where the lines are not all of it.
    """
    text = readable(lines, most)
    if not text:
        return '<p class="carme-dim">It has printed nothing.</p>'
    more = earlier_text(lines, most)
    head = f'<p class="carme-dim">{more} in <code>{escape(file)}</code></p>' if more and file else ""
    return f"{head}<pre>{escape(chr(10).join(text))}</pre>"


def _boxed(rank: str, log: str) -> str:
    # A box that scrolls must be reachable by the keyboard.
    return f'<div class="carme-log" tabindex="0" role="log" aria-label="Rank {rank}">{log}</div>'


def as_data(view: View) -> dict[str, Any]:
    """Return the run for the renderer in JupyterLab (share/jupyter/labextensions/carme-hub), which keeps folds open.

    It replaces the parts whose HTML changed, in this order: ``head``, ``ranks`` (a table), ``log`` (of rank 0),
    ``others`` (number, summary and log of each other rank), ``notes``. ``run`` is its id; ``buttons`` are as BUTTONS;
    ``running`` are the numbers and labels of ranks that run.
    """
    elastic = bool((view.state.get("asked") or {}).get("elastic"))
    front = view.lines.get(view.front, ())
    others = [rank for rank in visible_ranks(view)[0] if int(rank.get("rank", 0)) != view.front]
    return {
        "run": str(view.state.get("id") or ""),
        "name": run_name(view.state),
        "watch": watch_code(view.state),
        "ended": view.ended,
        "generation": int(view.state.get("generation") or 0),
        "buttons": [] if view.ended else [words[:3] for words in BUTTONS if elastic or words[3]],
        "running": [[int(rank["rank"]), rank_label(rank)] for rank in view.ranks if rank.get("state") == "running"],
        "head": head_html(view),
        "ranks": ranks_html(view),
        "log": log_html(front, FRONT_LINES, log_file(view, view.front)) if front else "",
        "others": [
            # A summary with a state would have a fold change its name while somebody reads it.
            [number, summary({**rank, "state": ""}), log_html(view.lines.get(number, ()), file=log_file(view, number))]
            for rank in others
            for number in [int(rank["rank"])]
        ],
        "notes": _notes(view),
    }


def watch_code(state: Mapping[str, Any]) -> str:
    """Return the code that follows exactly this run: a name alone means the newest run that has it."""
    id, name = str(state.get("id") or ""), str((state.get("asked") or {}).get("name") or "")
    return f"distributed.watch({f'{id}-1' if name and id == name else id!r})"


def _notes(view: View) -> str:
    text = environment_text(view)
    notes = f'<p class="carme-dim">{escape(text)}</p>' if text else ""
    if view.folder:
        notes += f'<p class="carme-dim">All output is in <code>{escape(view.folder)}</code></p>'
    return notes


def as_html(view: View) -> str:
    """Return the whole run for other notebooks, with rank 0 in front and, after the end, the other ranks folded.

    Before the end it is replaced several times a second, which would close every fold that the user opened.
    """
    parts = [STYLE, '<div class="carme-run">', head_html(view), ranks_html(view)]
    front = view.lines.get(view.front, ())
    if front or (view.ended and view.ranks):
        parts += [
            '<p class="carme-dim">Rank 0 printed:</p>',
            _boxed("0", log_html(front, FRONT_LINES, log_file(view, view.front))),
        ]
    for rank in visible_ranks(view)[0] if view.ended else ():
        number = int(rank.get("rank", 0))
        if number != view.front and view.lines.get(number):
            log = _boxed(rank_label(rank), log_html(view.lines[number], file=log_file(view, number)))
            parts.append(f"<details><summary>{escape(summary(rank))}</summary>{log}</details>")
    if not view.ended:  # a saved notebook may be all that is left of it
        code = escape(watch_code(view.state))
        parts.append(f'<p class="carme-dim">To see how it goes on: <code>{code}</code></p>')
    return "".join([*parts, _notes(view), "</div>"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def runs_html(states: Sequence[Mapping[str, Any]], now: float) -> str:
    """Return runs as an HTML table."""
    if not states:
        return "<p>There is no run yet.</p>"
    head = "".join(f'<th scope="col">{word}</th>' for word in RUN_COLUMNS)
    body = ""
    for state in states:
        first, *rest = run_cells(state, now)
        cells = "".join(f"<td>{escape(textwrap.shorten(word, 160, placeholder=' …'))}</td>" for word in rest)
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    wide = f'<div class="carme-wide carme-runs" tabindex="0" role="region" aria-label="Runs">{table}</div>'
    return f'{STYLE}<div class="carme-run">{wide}</div>'
