"""A scaling curve as a picture: SVG by a small writer of its own, PNG by matplotlib where the image has it.

Three panels with the number of ranks below: samples a second, efficiency, and the share of communication. Batch sizes
differ by colour, by the form of their marks and by a label at the line's end. Text takes the colour of the page, so
that a notebook may be dark; a file has a white ground.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .curve import Curve, Point, Value
from .report import headline, html_sentences, html_table, subject

#: Okabe and Ito's colours, which people with any kind of colour blindness tell apart; yellow is left out on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKS = ("circle", "square", "triangle", "diamond")
_PYPLOT_MARKS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
WIDTH, HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 78, 40, 46
_FONT = "font-family:system-ui,sans-serif"


WITHOUT = "A PNG needs matplotlib, which this image does not have: pip install matplotlib, or take the SVG."


class NoMatplotlib(RuntimeError):
    """PNG needs matplotlib; the message says where it is, and what works without."""


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
    """One panel. ``share``: values are parts of one, written in per cent. least: the top of its scale at least.

    knee: a number of ranks that is marked, with what is written there.
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
        """Return the largest value, with its error where that leaves the values room."""
        dots = [dot for line in self.lines if line.mark for dot in line.dots]
        largest = max([*(value for _, value, _ in dots), self.least])
        return min(max([*(value + error for _, value, error in dots), largest]), 1.4 * largest)


def panels(curve: Curve) -> list[Panel]:
    """Return the panels of a curve: those of which something was measured."""
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
    """Return all panels as one SVG file, one below the other."""
    shown = panels(curve)
    words = [*_wrapped(headline(curve), 58), *_wrapped(subject(curve), 66)]
    first = len(_wrapped(headline(curve), 58))
    head = 16 + 18 * len(words)
    height = head + HEIGHT * len(shown)
    text = "".join(
        f'<text x="12" y="{22 + 18 * n}" font-size="{14 if n < first else 12}"'
        f' font-weight="{600 if n < first else 400}">{escape(line)}</text>'
        for n, line in enumerate(words)
    )
    inside = "".join(
        f'<g transform="translate(0 {head + HEIGHT * n})">{_inside(panel)}</g>' for n, panel in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-labelledby="t d" style="{_FONT};color:#222" fill="currentColor">'
        f'<title id="t">{escape(subject(curve))}</title><desc id="d">{escape(headline(curve))}</desc>'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>{text}{inside}</svg>'
    )


def html(curve: Curve) -> str:
    """Return the whole report for a notebook: what is said, panels side by side where there is room, the table."""
    # Narrower than this nobody can read them: where there is no room they scroll.
    wide = f"flex:1 0 320px;min-width:320px;max-width:{WIDTH}px"
    pictures = "".join(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(panel.title)}, by ranks; values in the'
        f' table below" style="{_FONT};{wide}" fill="currentColor">{_inside(panel)}</svg>'
        for panel in panels(curve)
    )
    return (
        f'<div class="carme-scaling">{html_sentences(curve)}<div tabindex="0" role="region" aria-label="Plots"'
        f' style="display:flex;flex-wrap:wrap;gap:8px;overflow-x:auto">{pictures}'
        f"</div>{html_table(curve)}</div>"
    )


def png(curve: Curve, dpi: int = 144) -> bytes:
    """Return the same panels as a PNG.

    Raises:
        NoMatplotlib: the image has none.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlib(WITHOUT) from error
    shown = panels(curve)
    figure = Figure(figsize=(WIDTH / 72, (HEIGHT * len(shown) + 90) / 72), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join([*_wrapped(headline(curve), 66), *_wrapped(subject(curve), 66)]), fontsize=9)
    for axes, panel in zip(_as_list(figure.subplots(len(shown), 1)), shown, strict=True):
        _draw(axes, panel)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    return picture.getvalue()


# -- what is drawn ----------------------------------------------------------------------------------------------------


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
    """Yield what each batch size would do if every rank added what the first ones do."""
    for number, batch in enumerate(curve.batches):
        points = curve.points(batch)
        each = points[0].rate.mean / points[0].ranks
        dots = tuple((point.ranks, point.ranks * each, 0.0) for point in points)
        if len(dots) > 1:
            yield Line("", dots, COLOURS[number % len(COLOURS)], dashed=True)


class _Scale:
    """From ranks and values to a panel's coordinates; from 17 ranks up their distances are those of the logarithm."""

    def __init__(self, panel: Panel) -> None:
        self._ranks = panel.ranks
        self._wide = math.log2 if self._ranks[-1] > 16 else float
        self.ticks = ticks(panel.top)
        self.top = max(self.ticks[-1], panel.top)

    def x(self, ranks: int) -> float:
        low, high = self._wide(self._ranks[0]), self._wide(self._ranks[-1])
        part = (self._wide(ranks) - low) / (high - low) if high > low else 0.5
        return round(_LEFT + 8 + part * (WIDTH - _LEFT - _RIGHT - 16), 1)

    def y(self, value: float) -> float:
        part = min(1.0, max(0.0, value / self.top))
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 1)


def ticks(top: float, about: int = 5) -> list[float]:
    """Return round values from 0 to at least ``top``."""
    if top <= 0 or not math.isfinite(top):
        return [0.0, 1.0]
    rough = top / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough * 0.999)
    return [round(n * step, 12) for n in range(math.ceil(top / step * 0.999) + 1)]


def _inside(panel: Panel) -> str:
    scale = _Scale(panel)
    low, high, left, right = HEIGHT - _BOTTOM, _TOP, _LEFT, WIDTH - _RIGHT
    parts = [f'<text x="12" y="22" font-size="14" font-weight="600">{escape(panel.title)}</text>']
    for tick in scale.ticks:
        y = scale.y(tick)
        said = f"{round(100 * tick)} %" if panel.share else f"{tick:,.0f}" if scale.top >= 10 else f"{tick:g}"
        parts.append(f'<path d="M{left} {y}H{right}" stroke="currentColor" stroke-opacity=".15"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" font-size="12" text-anchor="end">{said}</text>')
    parts.append(f'<path d="M{left} {low}H{right}" stroke="currentColor"/>')
    for ranks in _readable(panel.ranks, scale):
        x = scale.x(ranks)
        parts.append(f'<path d="M{x} {low}v5" stroke="currentColor"/>')
        parts.append(f'<text x="{x}" y="{low + 19}" font-size="12" text-anchor="middle">{ranks}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{low + 38}" font-size="12" text-anchor="middle">ranks</text>')
    if panel.knee:
        x = scale.x(panel.knee)
        parts.append(f'<path d="M{x} {low}V{high}" stroke="currentColor" stroke-dasharray="2 4"/>')
        where = f'x="{x + 4}"' if x < (left + right) / 2 else f'x="{x - 4}" text-anchor="end"'
        parts.append(f'<text {where} y="{high - 4}" font-size="12">{escape(panel.note)}</text>')
    clip = [_line(line, scale) for line in panel.lines]
    return "".join([*parts, *clip, *_labels(panel, scale)])


def _line(line: Line, scale: _Scale) -> str:
    at = [(scale.x(ranks), scale.y(value)) for ranks, value, _ in line.dots if line.mark or value <= scale.top]
    if not line.mark and len(at) < len(line.dots):
        at.append(_leaving(line, scale))
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    thin = "" if line.mark else ' stroke-opacity=".45"'
    path = "M" + "L".join(f"{x} {y}" for x, y in at)
    parts = [f'<path d="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}{thin}/>']
    for ranks, value, error in line.dots if line.mark else ():
        x, y = scale.x(ranks), scale.y(value)
        if error:
            low, high = scale.y(value - error), scale.y(value + error)
            parts.append(f'<path d="M{x - 4} {low}h8m-4 0V{high}m-4 0h8" stroke="{line.colour}" fill="none"/>')
        parts.append(_mark(line, x, y))
    return "".join(parts)


def _leaving(line: Line, scale: _Scale) -> tuple[float, float]:
    """Return where an ideal line leaves the panel at its top."""
    inside = [dot for dot in line.dots if dot[1] <= scale.top][-1]
    outside = line.dots[len([dot for dot in line.dots if dot[1] <= scale.top])]
    part = (scale.top - inside[1]) / (outside[1] - inside[1])
    x0, x1 = scale.x(inside[0]), scale.x(outside[0])
    return round(x0 + part * (x1 - x0), 1), scale.y(scale.top)


def _mark(line: Line, x: float, y: float) -> str:
    look = f'fill="{"#fff" if line.dashed else line.colour}" stroke="{line.colour}" stroke-width="1.5"'
    if line.mark == "circle":
        return f'<circle cx="{x}" cy="{y}" r="4" {look}/>'
    forms = {"square": "m-4 -4h8v8h-8z", "triangle": "m0 -5l5 9h-10z", "diamond": "m0 -5l5 5l-5 5l-5 -5z"}
    return f'<path d="M{x} {y}{forms[line.mark]}" {look}/>'


def _labels(panel: Panel, scale: _Scale) -> Iterator[str]:
    """Yield the names of the lines at their ends, moved apart where they would cover each other."""
    named = [line for line in panel.lines if line.label and not line.dashed]
    ends = sorted(((scale.y(line.dots[-1][1]), line) for line in named), key=lambda end: end[0])
    lowest = HEIGHT - _BOTTOM - 14 * (len(ends) - 1)  # of the first, so that there is room for the others below it
    last = -math.inf
    for number, (y, line) in enumerate(ends):
        last = max(min(y + 4, lowest + 14 * number), last + 14)
        x = scale.x(line.dots[-1][0]) + 9
        # The words have the page's own colour: ours are too faint for small letters, on white and on black.
        yield f'<path d="M{x} {round(last - 4, 1)}h7" stroke="{line.colour}" stroke-width="5"/>'
        yield f'<text x="{x + 11}" y="{round(last, 1)}" font-size="11">{escape(line.label)}</text>'


def _readable(ranks: Sequence[int], scale: _Scale) -> list[int]:
    """Return those numbers of ranks that can stand beside each other; the first and the last are always there."""
    found = [ranks[0]]
    for number in ranks[1:-1]:
        if scale.x(number) - scale.x(found[-1]) >= 24 and scale.x(ranks[-1]) - scale.x(number) >= 24:
            found.append(number)
    return [*found, *ranks[-1:]] if len(ranks) > 1 else found


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _as_list(axes: Any) -> list[Any]:
    return list(axes) if hasattr(axes, "__iter__") else [axes]


def _draw(axes: Any, panel: Panel) -> None:
    scale = _Scale(panel)
    for line in panel.lines:
        x, y, error = ([dot[n] for dot in line.dots] for n in range(3))
        style = {"color": line.colour, "linestyle": "--" if line.dashed else "-"}
        if line.mark:
            label = "" if line.dashed else line.label
            face = {"markerfacecolor": "white"} if line.dashed else {}
            axes.errorbar(x, y, error, marker=_PYPLOT_MARKS[line.mark], capsize=3, label=label, **face, **style)
        else:
            axes.plot(x, y, alpha=0.45, **style)
    if panel.knee:
        axes.axvline(panel.knee, color="0.3", linestyle=":")
        axes.text(panel.knee, scale.top, f" {panel.note}", va="top", fontsize=8)
    if panel.ranks[-1] > 16:
        axes.set_xscale("log", base=2)
    axes.set_xticks(panel.ranks, [str(ranks) for ranks in panel.ranks])
    axes.set_yticks(scale.ticks, [f"{round(100 * t)} %" if panel.share else f"{t:,g}" for t in scale.ticks])
    axes.set_ylim(0, scale.top)
    axes.set(title=panel.title, xlabel="ranks")
    axes.legend(fontsize=8)
