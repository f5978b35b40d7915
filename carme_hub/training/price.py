"""What a run costs beyond its session is said before anything is submitted for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .asked import Asked
from .broker import NoBroker
from .companion_job import STARTING
from .companions import Hub, NoHub, Quote, Refused
from .direct import broker_here
from .display import counted, kind_of_gpu
from .failures import CannotRun
from .placing import Place, Room, place
from .runs import virtual


def price_of(asked: Asked, environ: Mapping[str, str] = os.environ) -> str:
    """Return what a run asks the hub for, its price and when it would start; "" where the session's own job will do.

    Raises:
        CannotRun: the hub would refuse it, in its words.
    """
    if asked.elastic:
        from . import elastic_price  # which says its price in the words below

        return elastic_price.of_run(asked, room(environ), environ)
    where = place(asked, room(environ))
    if not where.companion:
        return ""
    try:
        hub = Hub.from_environ()
        quote = hub.quote(nodes=where.nodes, gpus=where.gpus, minutes=minutes(asked))
    except (NoHub, Refused) as error:
        raise CannotRun(str(error)) from None
    if not quote.allowed:
        raise CannotRun(quote.message)
    more = needs(where, virtual=virtual(environ))
    are = "is" if where.nodes == 1 else "are"
    said = f"This session has no room for {counted(where.ranks, 'rank')}: {more} more {are} asked for."
    return f"{said} {cost(quote)}".strip()


def needs(where: Place, *, virtual: bool = False) -> str:
    """Return what a companion has, in words."""
    gpus = f" with {counted(where.gpus, kind_of_gpu({'virtual': virtual}))}" if where.gpus else ""
    return f"{counted(where.nodes, 'node')}{gpus}"


def minutes(asked: Asked) -> int:
    """Return for how long a companion is asked for; 0 = as long as the session."""
    return -(-asked.seconds // 60) + STARTING if asked.seconds else 0


def room(environ: Mapping[str, str]) -> Room:
    """Return what the session's job has, as Slurm told it; where it has several nodes the broker is asked."""
    nodes, gpus = environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURM_GPUS_ON_NODE", "")
    if nodes and not set("[,") & set(nodes):
        return Room(1, int(gpus) if gpus.isdigit() else 0)
    try:
        have = broker_here(environ).allocation()
    except NoBroker as error:
        raise CannotRun(str(error)) from None
    return Room(len(have.nodes), have.gpus)


def cost(quote: Quote, count: int = 1, *, virtual: bool = False) -> str:
    """Return what so many of what was quoted cost, and when they start, in sentences."""
    text = " ".join(filter(None, (_sentence(quote.message), _sentence(quote.said))))
    if count == 1 or not text:
        return text
    hours = f" All of them: up to {count * quote.gpu_seconds / 3600:.2f} {kind_of_gpu({'virtual': virtual})}-hours."
    return f"Each of them: {text}{hours if quote.gpu_seconds else ''}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
