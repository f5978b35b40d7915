"""The price of an elastic run beyond its session: each companion has one worker, so it is a multiple of one price."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from carme_hub.training.conductor.companion_price import cost_text
from carme_hub.training.run.description import gpu_kind, pluralize
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import JobCapacity
from carme_hub.training.run.run_folder import has_virtual_gpus
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import TIME_LIMIT, Hub, NoHub, Quote, Refused

from .workers import cpus_per_slot, session_slots

#: Seconds for the hub to quote a price during a run: a user waits for the answer.
QUOTE_TIMEOUT = 5.0


def price_of_run(options: RunOptions, capacity: JobCapacity, environ: Mapping[str, str]) -> str:
    """Describe what a new run will request from the hub, its price and its start; "" = nothing.

    Raises:
        CannotRun: the hub would refuse it and the session has too few slots for the fewest ranks, or the hub is silent.
    """
    fewest, _ = options.elastic or (options.ranks, 0)
    gpus = options.gpus_per_task if options.gpus_per_task is not None else int(capacity.gpus > 0)
    nodes = min(options.nodes or capacity.nodes, capacity.nodes)
    slots = len(session_slots([str(number) for number in range(nodes)], capacity.gpus, gpus, options.ranks))
    more = options.ranks - slots
    if more <= 0:
        return ""
    cpus = environ.get("SLURM_CPUS_ON_NODE", "")
    each = cpus_per_slot(int(cpus), nodes, slots) if cpus.isdigit() else 0  # 0 = as the session has
    minutes = -(-options.seconds // 60)
    try:
        quote = request_quote(Hub.from_environ(), gpus=gpus, cpus=each, minutes=minutes, timeout=TIME_LIMIT)
    except NoHub as error:
        raise CannotRun(str(error)) from None
    if quote is None:
        raise CannotRun("The hub does not answer. Try again in a moment.")
    why, few = ("", 0) if quote.allowed else (quote.message, more)
    if not why and (why := limit_message(quote, more)):
        few = more - quote.companions_left
    if options.ranks - few < fewest:
        raise CannotRun(why)
    asks = f"This session has no room for {more} of {pluralize(options.ranks, 'rank')}"
    if few == more:
        return f"{asks}, and gets no companions: {why} It starts with {slots}."
    is_virtual, found = has_virtual_gpus(environ), more - few
    asks = f"{asks}: {companions_text(found, gpus, virtual=is_virtual)} {'is' if found == 1 else 'are'} requested."
    begins = f" {why} It starts with {options.ranks - few}." if why else ""
    return f"{asks} {cost_text(quote, found, virtual=is_virtual)}{begins}".strip()


def request_quote(hub: Hub, *, gpus: int, cpus: int, minutes: int, timeout: float = QUOTE_TIMEOUT) -> Quote | None:
    """Return the quote for a companion of one worker; None where the hub does not answer in ``timeout`` seconds."""
    answers: list[Quote] = []

    def ask() -> None:
        try:
            answers.append(hub.quote(nodes=1, gpus=gpus, cpus=cpus, minutes=minutes))
        except Refused as error:
            answers.append(Quote(allowed=False, message=str(error)))
        except NoHub:
            pass  # no answer

    # In a thread: a socket's timeout applies to each read, not to the whole answer.
    thread = threading.Thread(target=ask, name="carme-quote", daemon=True)
    thread.start()
    thread.join(timeout)
    return answers[0] if answers else None


def companions_text(count: int, gpus: int, *, virtual: bool = False) -> str:
    """Describe companions: ``2 companions with 1 GPU each``."""
    having = f" with {pluralize(gpus, gpu_kind({'virtual': virtual}))}" if gpus else ""
    return f"{pluralize(count, 'companion')}{having}{' each' if having and count > 1 else ''}"


def limit_message(quote: Quote, count: int) -> str:
    """Return a message where the session may not have so many more companions; "" where it may, or that is unknown."""
    left, most = quote.companions_left, quote.companions_most
    if not 0 <= left < count:
        return ""
    more = f"{left} more can be opened" if left else "no more can be opened"
    return f"Each further rank needs a companion, and a session may have {most} at once: {more}."
