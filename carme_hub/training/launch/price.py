"""What a run costs beyond its session is said before anything is submitted for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from carme_hub.training.conductor.companion_price import cost, minutes, needs, room
from carme_hub.training.elastic import price as elastic_price
from carme_hub.training.run.description import counted
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import place
from carme_hub.training.run.run_folder import virtual
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Hub, NoHub, Refused


def price_of(asked: RunOptions, environ: Mapping[str, str] = os.environ) -> str:
    """Return what a run asks the hub for, its price and when it would start; "" where the session's own job will do.

    Raises:
        CannotRun: the hub would refuse it, in its words.
    """
    if asked.elastic:
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
