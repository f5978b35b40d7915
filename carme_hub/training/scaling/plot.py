"""Plots of a scaling curve, drawn with matplotlib if the image has it: as files, and in a notebook's report.

The panels are samples per second, efficiency, and the share of communication, all by number of ranks. Batch sizes
differ in colour and marker. In an image without matplotlib the report has only the table and a note about matplotlib.
"""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

from .curve import Curve, Point, Value
from .report import headline, html_sentences, html_table, subject

#: Okabe and Ito's colours, which differ for all kinds of colour blindness; without yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: Markers of matplotlib: circle, square, triangle, diamond.
MARKS = ("o", "s", "^", "D")
#: Size of a panel in inches, and its largest width on a page in pixels.
WIDTH, HEIGHT, PIXELS = 4.8, 3.2, 460
#: Changes to matplotlib's defaults; the user's own matplotlib settings are ignored. Text stays text in an SVG, a dollar
#: sign in a script's name does not start a formula, and the same curve always gives the same file.
_STYLE = {
    **{"svg.fonttype": "none", "svg.hashsalt": "carme-scaling", "text.parse_math": False},
    **{"font.size": 9, "axes.grid": True, "axes.grid.axis": "y", "grid.alpha": 0.3},
    **{"axes.spines.top": False, "axes.spines.right": False, "lines.markersize": 5, "errorbar.capsize": 3},
}

WITHOUT = (
    "A plot needs matplotlib, which this image does not have: pip install matplotlib, or write the table as "
    ".html, .csv or .txt."
)


class NoMatplotlib(RuntimeError):
    """A plot needs matplotlib; the message says how to install it, and what works without it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel: (ranks, value, error) by ranks."""

    label: str
    dots: tuple[tuple[int, float, float], ...]
    colour: str
    mark: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        share: values are fractions, shown in per cent. least: the smallest upper end of the scale.
        knee: a marked number of ranks, 0 for none. note: the label of that mark.
    """

    title: str
    lines: tuple[Line, ...]
    share: bool = False
    least: float = 0.0
    knee: int = 0
    note: str = ""

    @property
    def ranks(self) -> list[int]:
        """Return all numbers of ranks."""
        return sorted({dot[0] for line in self.lines for dot in line.dots})

    @property
    def top(self) -> float:
        """Return the upper end of the scale: the largest value with its error, at most 1.4 times the largest value."""
        dots = [dot for line in self.lines if line.mark for dot in line.dots]
        largest = max([*(value for _, value, _ in dots), self.least])
        return min(max([*(value + error for _, value, error in dots), largest]), 1.4 * largest)


def panels(curve: Curve) -> list[Panel]:
    """Return the panels of a curve that have measured values."""
    knee = curve.advice()
    rates = [*_lines(curve, lambda point: point.rate), *_ideals(curve)]
    found = [Panel("Samples a second", tuple(rates))]
    if knee is not None and knee.bends:
        note = f"{'' if len(curve.batches) == 1 else f'batch {knee.batch}: '}worth it up to {knee.ranks}"
        found = [Panel("Samples a second", tuple(rates), knee=knee.ranks, note=note)]
    efficiency = _lines(curve, lambda point: point.efficiency)
    quiet = _lines(curve, lambda point: point.quiet, dashed=True)
    if efficiency or quiet:
        title = "Efficiency" + (" (dashed: against alone)" if quiet else "")
        found.append(Panel(title, (*efficiency, *quiet), share=True, least=1.0))
    if lost := _lines(curve, lambda point: point.communication):
        found.append(Panel("Communication’s share of a step", lost, share=True, least=0.2))
    return found


def svg(curve: Curve) -> str:
    """Return all panels as one SVG file, one below the other; errors as ``png``."""
    words = f'<title id="t">{escape(subject(curve))}</title><desc id="d">{escape(headline(curve))}</desc>'
    drawn = _file(panels(curve), "svg", head=_head(curve)).decode()
    # Without the XML declaration and doctype, so that it can be inserted into a page.
    start, end, inside = drawn[drawn.index("<svg") :].partition(">")
    return f'{start} role="img" aria-labelledby="t d"{end}{words}{inside}'


def png(curve: Curve, dpi: int = 144) -> bytes:
    """Return the same panels as a PNG.

    Raises:
        NoMatplotlib: the image has no matplotlib.
    """
    return _file(panels(curve), "png", head=_head(curve), dpi=dpi)


def html(curve: Curve) -> str:
    """Return the whole report for a notebook: sentences, panels (side by side if there is room), table."""
    return f'<div class="carme-scaling">{html_sentences(curve)}{_pictures(curve)}{html_table(curve)}</div>'


def _pictures(curve: Curve) -> str:
    """Return the panels as HTML, each a separate image on white, also on a dark page."""
    try:
        drawn = [(panel.title, b64encode(_file([panel], "svg")).decode()) for panel in panels(curve)]
    except NoMatplotlib:
        return f"<p>{escape(WITHOUT)}</p>"
    # Narrower images cannot be read; without enough room they scroll.
    wide = f"flex:1 0 320px;min-width:320px;max-width:{PIXELS}px"
    images = "".join(
        f'<img src="data:image/svg+xml;base64,{picture}" style="{wide}" alt="{escape(title)}, by ranks; values in the'
        ' table below">'
        for title, picture in drawn
    )
    return (
        '<div tabindex="0" role="region" aria-label="Plots"'
        f' style="display:flex;flex-wrap:wrap;gap:8px;overflow-x:auto">{images}</div>'
    )


# -- drawing ---------------------------------------------------------------------------------------------------------


def _lines(curve: Curve, get: Callable[[Point], Value | None], *, dashed: bool = False) -> tuple[Line, ...]:
    found = []
    for number, batch in enumerate(curve.batches):
        dots = [
            (point.ranks, value.mean, value.error or 0.0)
            for point in curve.points(batch)
            if (value := get(point)) is not None
        ]
        if dots:
            colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            found.append(Line(f"batch {batch}", tuple(dots), colour, mark, dashed))
    return tuple(found)


def _ideals(curve: Curve) -> Iterator[Line]:
    """Yield the ideal line of each batch size: every rank adds as much as the first ones."""
    for number, batch in enumerate(curve.batches):
        points = curve.points(batch)
        each = points[0].rate.mean / points[0].ranks
        dots = tuple((point.ranks, point.ranks * each, 0.0) for point in points)
        if len(dots) > 1:
            yield Line("", dots, COLOURS[number % len(COLOURS)], dashed=True)


def _file(shown: Sequence[Panel], format: str, *, head: str = "", dpi: int = 72) -> bytes:
    """Return panels as a file of this format, one below the other."""
    try:
        from matplotlib.style import context
    except ImportError as error:
        raise NoMatplotlib(WITHOUT) from error
    picture = io.BytesIO()
    with context(["default", _STYLE]):
        metadata = {"Date": None} if format == "svg" else None
        figure(shown, head).savefig(picture, format=format, dpi=dpi, metadata=metadata)
    return picture.getvalue()


def figure(shown: Sequence[Panel], head: str = "") -> Any:
    """Return panels as a matplotlib ``Figure``, without pyplot: it must not be among the user's own figures."""
    from matplotlib.figure import Figure

    height = HEIGHT * len(shown) + 0.2 * len(head.splitlines())
    made = Figure(figsize=(WIDTH, height), layout="constrained")
    if head:
        made.suptitle(head, x=0.02, ha="left", fontsize=8)
    places: list[Any] = list(made.subplots(len(shown), 1, squeeze=False).flat)
    for axes, panel in zip(places, shown, strict=True):
        _draw(axes, panel)
    return made


def _draw(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter

    for line in panel.lines:
        ranks, values, errors = zip(*line.dots, strict=True)
        style = {"color": line.colour, "linestyle": "--" if line.dashed else "-"}
        if line.mark:
            label = None if line.dashed else line.label
            face = {"markerfacecolor": "white"} if line.dashed else {}
            bars = [error or math.nan for error in errors]
            axes.errorbar(ranks, values, bars, marker=line.mark, label=label, **face, **style)
        else:
            axes.plot(ranks, values, alpha=0.45, **style)
    if panel.knee:
        axes.axvline(panel.knee, color="0.3", linestyle=":", label=panel.note)
    if panel.ranks[-1] > 16:
        axes.set_xscale("log", base=2)
    numbers = panel.ranks[:: -math.ceil(len(panel.ranks) / 10)]  # at most 10 labels, the last one included
    axes.xaxis.set(major_locator=FixedLocator(numbers), minor_locator=NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, 0, " %") if panel.share else StrMethodFormatter("{x:,g}"))
    axes.set(title=panel.title, xlabel="ranks", ylim=(0, 1.05 * panel.top or 1))
    axes.legend()


def _head(curve: Curve) -> str:
    """Return the text above the panels of a file."""
    return "\n".join(line for text in (headline(curve), subject(curve)) for line in wrap(text, 76))
