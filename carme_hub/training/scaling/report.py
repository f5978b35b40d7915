"""A scaling curve as sentences, as a table, as CSV and as HTML. No input or output.

The hub's form shows the sentence of ``advice_of`` too (``carme_hub.domain.scaling_curve``); a test compares the two,
because the hub gets numbers and never sentences.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from .bottleneck import NO_ALONE_STEPS, Bottleneck, bottleneck
from .curve import MIN_REPEATS, Curve, Recommendation, Value
from .profiled import Profiled

_CELL = "white-space:nowrap;text-align:right;padding:2px 8px"
_COLUMNS = ("rate", "speedup", "efficiency", "quiet", "communication", "waiting", "loading", "own", "hours")


def advice_of(knee: Recommendation, device: str, gpus_per_task: int = 1, batches: int = 1) -> str:
    """Return the advice of a recommendation, as one sentence.

    Args:
        device: "gpu" or "cpu". gpus_per_task: GPUs of each rank.
        batches: number of measured batch sizes; with several, the sentence names the batch.
    """
    unit = "rank on CPUs" if device == "cpu" else "GPU" if gpus_per_task < 2 else f"rank of {gpus_per_task} GPUs"
    at = f" with batch {knee.batch}" if batches > 1 else ""
    percent = round(100 * knee.further)
    if not knee.bends:
        return f"No bend up to {knee.most}{at}: the last ones added {percent} % of a {unit} each."
    more = f"adds {percent} %" if percent > 0 else "adds nothing" if percent == 0 else f"takes {-percent} % away"
    up_to = f", up to {knee.fastest}; more are slower" if percent > 0 and knee.fastest < knee.most else ""
    return f"Ask for {knee.ranks}, not {knee.most}{at}: beyond {knee.ranks} each further {unit} {more}{up_to}."


def headline(curve: Curve) -> str:
    """Return the advice of a curve, with its certainty."""
    knee = curve.advice()
    if knee is None:
        return "One number of ranks gives no curve: measure two or more."
    sentence = advice_of(knee, curve.device, curve.gpus_per_task, len(curve.batches))
    if knee.repeats < 2:
        return f"{sentence} Measured once: repeat it before relying on it."
    return sentence if knee.agree == knee.repeats else f"{sentence} {knee.agree} of {knee.repeats} repeats agree."


def limit_of(curve: Curve) -> Bottleneck | None:
    """Return the likely bottleneck at the batch size of the advice."""
    knee = curve.advice()
    batch = knee.batch if knee is not None else max(curve.batches, default=None)
    return bottleneck(curve, batch) if batch is not None else None


def subject(curve: Curve) -> str:
    """Return what was measured, on which device and when."""
    on = f"{curve.gpu_type or 'GPU'}" if curve.device == "gpu" else "CPU, no GPU"
    per = "all ranks together" if curve.mode == "strong" else "each rank"
    when = datetime.fromtimestamp(curve.began, UTC).strftime("%Y-%m-%d %H:%M UTC") if curve.began else ""
    parts = (f"{curve.script} on {on}", f"{curve.mode} scaling, batch of {per}", curve.backend, curve.image, when)
    return ", ".join(part for part in parts if part)


def sentences(curve: Curve) -> list[str]:
    """Return all sentences about a curve, the advice first."""
    limit = limit_of(curve)
    found = [headline(curve), *([limit.message] if limit is not None else [])]
    if (profile := curve.profiled) is not None:
        found.append(_profile_text(profile))
    if any(point.quiet is None for point in curve.points()) and NO_ALONE_STEPS not in " ".join(found):
        found.append(f"What communication takes was not measured: {NO_ALONE_STEPS}.")
    if max((point.rate.count for point in curve.points()), default=0) < MIN_REPEATS:
        found.append(f"Fewer than {MIN_REPEATS} repeats give no error bars.")
    return [*found, *curve.failures, *curve.notes]


def _profile_text(profile: Profiled) -> str:
    shares = [("data loading", profile.loading), ("communication", profile.communication)]
    shares += [
        (name, each) for name, each in (("GPU busy", profile.busy), ("copies", profile.copying)) if each is not None
    ]
    said = ", ".join(f"{name} {round(100 * share)} %" for name, share in shares)
    return f"Profile of {profile.ranks} ranks with batch {profile.batch} (run {profile.run}): {said} of the time."


def columns(curve: Curve) -> list[str]:
    """Return the column names of the table."""
    unit = "GPU-hours" if curve.device == "gpu" else "rank-hours (CPU)"
    found = ["batch", "ranks", "nodes", "samples/s", "speed-up", "efficiency", "against alone"]
    return [*found, "communication", "loading", *([f"{unit} an epoch"] if curve.epoch else [])]


def rows(curve: Curve) -> Iterator[list[str]]:
    """Yield the rows of the table, with the columns ``columns``."""
    for point in curve.points():
        cells = [str(point.batch), str(point.ranks), str(point.nodes), number(point.rate)]
        cells += [number(point.speedup), *(percent(getattr(point, name)) for name in ("efficiency", "quiet"))]
        cells += [percent(point.communication), percent(point.loading)]
        yield [*cells, *([number(point.hours)] if curve.epoch else [])]


def table(curve: Curve) -> str:
    """Return the report as text for a terminal."""
    lines = [columns(curve), *rows(curve)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([subject(curve), "", *text, "", EXPLAINED, "", *sentences(curve)])


EXPLAINED = (
    "± is half of the 95 % interval over repeats. Speed-up is taken within each repeat and is the mean of those, so it "
    "can differ from the ratio of the mean rates. Efficiency: speed-up by ranks. Against alone: the same steps without "
    "communication, in the same run."
)


def to_csv(curve: Curve) -> str:
    """Return the curve as CSV: one line for each batch size and number of ranks, shares from 0 to 1."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    fixed = ["script", "image", "device", "gpu_type", "backend", "mode"]
    parts = ("", "_error", "_least", "_most")
    writer.writerow(
        [*fixed, "batch", "ranks", "nodes", "repeats", *(name + part for name in _COLUMNS for part in parts)]
    )
    for point in curve.points():
        line: list[object] = [_no_formula(getattr(curve, name)) for name in fixed]
        line += [point.batch, point.ranks, point.nodes, point.rate.count]
        for name in _COLUMNS:
            found: Value | None = getattr(point, name)
            line += [found.mean, _or_empty(found.error), found.least, found.most] if found else [""] * 4
        writer.writerow(line)
    return text.getvalue()


def html_table(curve: Curve) -> str:
    """Return the table as HTML with a caption; it scrolls where the page is narrow."""
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in columns(curve))
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows(curve)
    )
    sentence = escape(subject(curve))
    return (
        f'<p>{sentence}</p><div style="overflow-x:auto" tabindex="0" role="region" aria-label="Table: {sentence}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div><p><small>{escape(EXPLAINED)}</small></p>"
    )


def html_sentences(curve: Curve) -> str:
    """Return the sentences as HTML, the advice as the first and strongest line."""
    first, *others = sentences(curve)
    return f"<p><strong>{escape(first)}</strong></p>" + "".join(f"<p>{escape(each)}</p>" for each in others)


def number(found: Value | None) -> str:
    """Return a value with its error: two digits of the error, and at most four of the value."""
    if found is None:
        return "–"
    if not found.error:
        return _rounded(found.mean, 3)
    places = max(0, min(_place(found.error) + 2, _place(found.mean) + 4))
    return f"{found.mean:.{places}f} ± {found.error:.{places}f}"


def percent(found: Value | None) -> str:
    """Return a share with its error."""
    if found is None:
        return "–"
    return f"{round(100 * found.mean)}" + (f" ± {round(100 * found.error)}" if found.error is not None else "") + " %"


def _place(amount: float) -> int:
    """Return the decimal place of the first digit, less one; below 0 before the point."""
    return -1 - math.floor(math.log10(abs(amount))) if amount else 0


def _rounded(amount: float, digits: int) -> str:
    return f"{amount:.{max(0, _place(amount) + digits)}f}"


def _or_empty(amount: float | None) -> float | str:
    return "" if amount is None else amount


def _no_formula(text: str) -> str:
    """Return a cell that a spreadsheet reads as text, never as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
