"""What a run looks like in a notebook, as HTML. Pure: what ``state.json`` and the ranks' logs say goes in.

All of it makes sense without its colours and its style sheet, which JupyterLab takes away from a notebook that is not
trusted. What ranks print is text of anybody's choice, so nothing of it reaches the page unescaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from carme_hub.training.run.description import (
    FOLDED,
    FRONT,
    RUN_HEADS,
    View,
    called,
    counted,
    failure,
    figures,
    heads,
    progress,
    rank_words,
    readable,
    run_words,
    shown,
    speed,
    state_word,
    summary,
    title,
    why,
)

from .display_style import STYLE

_MARKS = {"finished": "✓", "failed": "✗", "interrupted": "■", "lost": "✗", "waiting": "…", "starting": "…"}


def head_html(view: View) -> str:
    """Return how it stands: state, bar, figures, and the error that ended it."""
    state = str(view.state.get("state") or "starting")
    mark = _MARKS.get(state, "▶")
    parts = [
        f'<p><span class="carme-state"><span aria-hidden="true">{mark}</span> {escape(state_word(view))}</span> '
        f"{escape(title(view))}</p>"
    ]
    if said := why(view):
        parts.append(f'<p class="carme-bad">{escape(said)}</p>' if failure(view) else f"<p>{escape(said)}</p>")
    done, total = progress(view)
    if total:
        parts.append(f'<progress aria-label="Steps" value="{min(done, total)}" max="{total}">{done}/{total}</progress>')
    counts = ". ".join(filter(None, (_capital(speed(view)), _capital(figures(view)))))
    parts.append(f'<p class="carme-dim">{escape(counts)}</p>')
    return "".join(parts)


def ranks_html(view: View) -> str:
    """Return the table of the ranks; columns of which nothing is known are left out."""
    ranks, more = shown(view)
    if not ranks:
        return ""
    rows = [rank_words(rank) for rank in ranks]
    words = heads(view)
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
    rest = f'<p class="carme-dim">and {counted(more, "rank")} more</p>' if more else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="carme-wide" tabindex="0" role="region" aria-label="Ranks">{table}</div>{rest}'


def log_html(lines: Sequence[str], most: int = FOLDED) -> str:
    """Return what a rank said, its newest lines only; in a box of class ``carme-log`` the newest are in view."""
    said = readable(lines, most)
    if not said:
        return '<p class="carme-dim">It has printed nothing.</p>'
    return f"<pre>{escape(chr(10).join(said))}</pre>"


def _boxed(rank: str, log: str) -> str:
    # A box that scrolls is for the keyboard, too.
    return f'<div class="carme-log" tabindex="0" role="log" aria-label="Rank {rank}">{log}</div>'


def as_html(view: View) -> str:
    """Return the whole run, rank 0 in front and, once it has ended, the others folded.

    Before the end it is shown anew several times a second, and each time would close the folds that people open.
    """
    parts = [STYLE, '<div class="carme-run">', head_html(view), ranks_html(view)]
    front = view.lines.get(view.front, ())
    if front or (view.ended and view.ranks):
        parts += ['<p class="carme-dim">Rank 0 printed:</p>', _boxed("0", log_html(front, FRONT))]
    for rank in shown(view)[0] if view.ended else ():
        number = int(rank.get("rank", 0))
        if number != view.front and view.lines.get(number):
            log = _boxed(called(rank), log_html(view.lines[number]))
            parts.append(f"<details><summary>{escape(summary(rank))}</summary>{log}</details>")
    if view.folder:
        parts.append(f'<p class="carme-dim">All of it is kept in <code>{escape(view.folder)}</code></p>')
    return "".join([*parts, "</div>"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def runs_html(states: Sequence[Mapping[str, Any]], now: float) -> str:
    """Return runs as a table for a notebook."""
    if not states:
        return "<p>There is no run yet.</p>"
    head = "".join(f'<th scope="col">{word}</th>' for word in RUN_HEADS)
    body = ""
    for state in states:
        first, *rest = run_words(state, now)
        cells = "".join(f"<td>{escape(textwrap.shorten(word, 160, placeholder=' …'))}</td>" for word in rest)
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    wide = f'<div class="carme-wide carme-runs" tabindex="0" role="region" aria-label="Runs">{table}</div>'
    return f'{STYLE}<div class="carme-run">{wide}</div>'
