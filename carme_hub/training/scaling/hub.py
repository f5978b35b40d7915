"""Sends the summary of a curve to the hub, so that the form can show it where the user chooses GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carme_hub.training.session.companions import Hub, NoHub, Refused

from .curve import Curve, Value
from .report import limit_of

#: The most points to send; the form has room for fewer.
MAX_POINTS = 32


def publish(curve: Curve) -> str:
    """Send the summary; return a message where that failed, "" otherwise, also where there is no hub."""
    document = summary(curve)
    try:
        hub = Hub.from_environ()
    except NoHub:
        return ""
    if document is None:
        return ""
    try:
        replace(hub, url=hub.url.removesuffix("companions") + "scaling").ask("PUT", "", document)
    except (NoHub, Refused) as error:
        return f"The form at the hub does not show this curve: {error}"
    return ""


def summary(curve: Curve) -> dict[str, Any] | None:
    """Return the numbers that the hub keeps of a curve; None where it gives no advice."""
    knee, limit = curve.advice(), limit_of(curve)
    if knee is None:
        return None
    points = curve.points(knee.batch)
    if len(points) > MAX_POINTS:  # the first, the last, the knee, and some between
        every = -(-len(points) // (MAX_POINTS - 3))
        points = [p for n, p in enumerate(points) if n % every == 0 or p is points[-1] or p.ranks == knee.ranks]
    return {
        "script": curve.script[:128],
        "mode": curve.mode,
        "backend": curve.backend,
        "device": curve.device,
        "gpu_type": curve.gpu_type[:64],
        "gpus_per_task": curve.gpus_per_task,
        "batch": knee.batch,
        "batches": len(curve.batches),
        "ranks": knee.ranks,
        "most": knee.most,
        "further": knee.further,
        "fastest": knee.fastest,
        "agree": knee.agree,
        "repeats": knee.repeats,
        "limit": limit.kind if limit is not None else "",
        "measured": curve.began,
        "points": [
            {
                "ranks": point.ranks,
                "rate": point.rate.mean,
                "error": point.rate.error,
                "speedup": _mean(point.speedup),
                "efficiency": _mean(point.efficiency),
                "quiet": _mean(point.quiet),
            }
            for point in points
        ],
    }


def _mean(found: Value | None) -> float | None:
    return None if found is None else found.mean
