"""The price of a run beyond its session, shown before anything is requested."""

from __future__ import annotations

import os
from collections.abc import Mapping

from carme_hub.training.conductor.companion_price import companion_minutes, cost_text, job_capacity, resources_text
from carme_hub.training.elastic import price as elastic_price
from carme_hub.training.run.description import pluralize
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import place_ranks
from carme_hub.training.run.run_folder import has_virtual_gpus
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Hub, NoHub, Refused


def price_of(options: RunOptions, environ: Mapping[str, str] = os.environ) -> str:
    """Describe what a run will request from the hub, its price and its start; "" where the session's own job is enough.

    Raises:
        CannotRun: the hub would refuse it; the message is the hub's.
    """
    if options.elastic:
        return elastic_price.price_of_run(options, job_capacity(environ), environ)
    placement = place_ranks(options, job_capacity(environ))
    if not placement.companion:
        return ""
    try:
        hub = Hub.from_environ()
        quote = hub.quote(nodes=placement.nodes, gpus=placement.gpus, minutes=companion_minutes(options))
    except (NoHub, Refused) as error:
        raise CannotRun(str(error)) from None
    if not quote.allowed:
        raise CannotRun(quote.message)
    more = resources_text(placement, virtual=has_virtual_gpus(environ))
    are = "is" if placement.nodes == 1 else "are"
    text = f"This session has no room for {pluralize(placement.ranks, 'rank')}: {more} more {are} requested."
    return f"{text} {cost_text(quote)}".strip()
