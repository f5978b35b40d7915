"""The nodes and the price of a run beyond its session, shown before anything is requested."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from carme_hub.training.conductor.companion_price import (
    companion_minutes,
    cost_text,
    job_capacity,
    resources_text,
)
from carme_hub.training.elastic import price as elastic_price
from carme_hub.training.run.description import pluralize
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import Placement, companion_size, fewest_nodes, gpus_of_rank, place_ranks
from carme_hub.training.run.run_folder import has_virtual_gpus
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Hub, NoHub, Quote, Refused


def choose_nodes(options: RunOptions, environ: Mapping[str, str] = os.environ) -> RunOptions:
    """Return the options with the number of nodes: the fewest, where the session has no room and the user chose none.

    Raises:
        CannotRun: no number of nodes gives every node a number of GPUs that it may have.
    """
    if options.elastic or options.nodes:
        return options
    capacity = job_capacity(environ)
    each = gpus_of_rank(options, capacity)
    if not each or not place_ranks(options, capacity).companion:
        return options
    allowed = _ask(lambda hub: hub.quote(nodes=1, gpus=each)).gpus_of_one_node
    if not allowed:  # an older hub does not tell
        return options
    nodes = fewest_nodes(options.ranks, each, allowed, options.gpus_per_node)
    if not nodes:
        most = f" (--gpus-per-node {options.gpus_per_node})" if options.gpus_per_node else ""
        raise CannotRun(
            f"{pluralize(options.ranks, 'rank')} with {pluralize(each, 'GPU')} each cannot be divided among "
            f"nodes{most}: one node of this profile may have {', '.join(map(str, allowed))} GPUs."
        )
    return replace(options, nodes=nodes, gpus_per_node=0)


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
    size = companion_size(options, placement)
    quote = _ask(lambda hub: hub.quote(**size, minutes=companion_minutes(options)))
    if not quote.allowed:
        raise CannotRun(f"{quote.message}{_advice(options, placement, quote)}")
    more = resources_text(placement, virtual=has_virtual_gpus(environ))
    are = "is" if placement.nodes == 1 else "are"
    text = f"This session has no room for {pluralize(placement.ranks, 'rank')}: {more} more {are} requested."
    return f"{text} {cost_text(quote)}".strip()


def _ask(question: Callable[[Hub], Quote]) -> Quote:
    try:
        return question(Hub.from_environ())
    except (NoHub, Refused) as error:
        raise CannotRun(str(error)) from None


def _advice(options: RunOptions, placement: Placement, quote: Quote) -> str:
    """Return the option with which the hub may allow the run, as a sentence; "" where there is none."""
    nodes = fewest_nodes(options.ranks, placement.gpus_per_task, quote.gpus_of_one_node)
    if placement.gpus_per_node in quote.gpus_of_one_node or nodes in (0, placement.nodes):
        return ""
    return f" Use --nodes {nodes}."
