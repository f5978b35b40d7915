"""The nodes and the price of a run beyond its session, shown before anything is requested."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from carme_hub.training.conductor.companion_price import (
    companion_minutes,
    cost_text,
    job_capacity,
    job_nodes,
    resources_text,
)
from carme_hub.training.elastic import price as elastic_price
from carme_hub.training.run.description import pluralize
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import (
    JobCapacity,
    Placement,
    companion_size,
    divide_ranks,
    fewest_nodes,
    gpus_of_rank,
    may_stay,
    place_ranks,
)
from carme_hub.training.run.run_folder import has_virtual_gpus
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Hub, NoHub, Quote, Refused


class NoQuote(CannotRun):
    """The hub does not answer, or has no quote."""


def choose_nodes(
    options: RunOptions, environ: Mapping[str, str] = os.environ, capacity: JobCapacity | None = None
) -> RunOptions:
    """Return the options with the number of nodes, the fewest where the user chose none, and of the ranks that stay.

    Args:
        capacity: of the session's job; default: as ``job_capacity`` finds it.

    Raises:
        NoQuote: the hub does not say what a node may have.
        CannotRun: no number of nodes gives every node a number of GPUs that it may have.
    """
    if options.elastic:
        return options
    capacity = capacity or job_capacity(environ)
    each = gpus_of_rank(options, capacity)
    if not place_ranks(options, capacity).companion:
        return options
    allowed, other_nodes = tuple[int, ...](), False
    if each and not options.nodes:
        allowed = _ask(lambda hub: hub.quote(nodes=1, gpus=each)).gpus_of_one_node  # () where the hub is older
    elif options.nodes > capacity.nodes and may_stay(options):
        with contextlib.suppress(NoQuote):  # the question for the price will say so
            other_nodes = _ask(lambda hub: hub.quote(nodes=1, gpus=each)).excludes_nodes
    chosen = divide_ranks(options, capacity, allowed, other_nodes=other_nodes)
    if chosen is None:
        most = f" (--gpus-per-node {options.gpus_per_node})" if options.gpus_per_node else ""
        raise CannotRun(
            f"{pluralize(options.ranks, 'rank')} with {pluralize(each, 'GPU')} each cannot be divided among "
            f"nodes{most}: one node of this profile may have {', '.join(map(str, allowed))} GPUs."
        )
    return chosen


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
    quote = _quote(options, placement, environ)
    if not quote.allowed:
        raise CannotRun(f"{quote.message}{_advice(options, placement, quote)}")
    more = resources_text(placement, virtual=has_virtual_gpus(environ))
    are = "is" if placement.nodes == 1 else "are"
    room = f"no room for {pluralize(placement.size, 'rank')}"
    if placement.own:
        room = f"room for {placement.own.ranks} of {placement.size} ranks"
    text = f"This session has {room}: {more} more {are} requested."
    return f"{text} {cost_text(quote)}".strip()


def wait_of(options: RunOptions, asked: RunOptions, environ: Mapping[str, str] = os.environ) -> str:
    """Say that a run would wait for GPUs, and how many ranks would start now; "" where it starts now.

    Args:
        options: with the number of nodes. asked: as the user has written them.

    Raises:
        NoQuote: the hub does not say.
    """
    capacity = job_capacity(environ)
    placement = place_ranks(options, capacity)
    if options.elastic or not placement.companion:  # an elastic run starts with what there is
        return ""

    first = _quote(options, placement, environ)
    if first.starts_now:
        return ""

    def starts_now(ranks: int) -> bool:
        fewer = replace(asked, ranks=ranks, nodes=0)
        if not place_ranks(fewer, capacity).companion:
            return True
        chosen = divide_ranks(fewer, capacity, first.gpus_of_one_node) if first.gpus_of_one_node else None
        found = _quote(chosen, place_ranks(chosen, capacity), environ) if chosen else None
        return found is not None and found.allowed and found.starts_now

    most, too_many = 0, options.ranks
    while placement.gpus_per_task and too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if starts_now(middle) else (most, middle)
    advice = f" With -n {most}{' and without --nodes' if asked.nodes else ''} it would start now." if most else ""
    return f"It may wait for {'GPUs' if placement.gpus else 'nodes'} that others use, or wait for.{advice}"


def _quote(options: RunOptions, placement: Placement, environ: Mapping[str, str]) -> Quote:
    exclude = job_nodes(environ) if options.other_nodes else ()
    size, minutes = companion_size(options, placement), companion_minutes(options)
    return _ask(lambda hub: hub.quote(**size, minutes=minutes, exclude=exclude))


def _ask(question: Callable[[Hub], Quote]) -> Quote:
    try:
        return question(Hub.from_environ())
    except (NoHub, Refused) as error:
        raise NoQuote(str(error)) from None


def _advice(options: RunOptions, placement: Placement, quote: Quote) -> str:
    """Return the option with which the hub may allow the run, as a sentence; "" where there is none."""
    nodes = fewest_nodes(options.ranks, placement.gpus_per_task, quote.gpus_of_one_node)
    if placement.gpus_per_node in quote.gpus_of_one_node or nodes in (0, placement.nodes):
        return ""
    return f" Use --nodes {nodes}."
