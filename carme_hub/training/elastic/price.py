"""What an elastic run costs beyond its session: each companion has one worker, so it is so often the price of one."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from carme_hub.training.conductor.companion_price import cost
from carme_hub.training.run.description import counted, kind_of_gpu
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import Room
from carme_hub.training.run.run_folder import virtual
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import TIME_LIMIT, Hub, NoHub, Quote, Refused

from .workers import cpus_each, seats_of

#: Seconds for the hub to say a price while a run goes on: somebody waits for the answer.
PATIENCE = 5.0


def of_run(asked: RunOptions, room: Room, environ: Mapping[str, str]) -> str:
    """Return what a run that is to begin asks the hub for, its price and when that would start; "" = for nothing.

    Raises:
        CannotRun: the hub would refuse it, and the session has no room for the fewest ranks; or it does not answer.
    """
    fewest, _ = asked.elastic or (asked.ranks, 0)
    gpus = asked.gpus_per_task if asked.gpus_per_task is not None else int(room.gpus > 0)
    nodes = min(asked.nodes or room.nodes, room.nodes)
    seats = len(seats_of([str(number) for number in range(nodes)], room.gpus, gpus, asked.ranks))
    more = asked.ranks - seats
    if more <= 0:
        return ""
    cpus = environ.get("SLURM_CPUS_ON_NODE", "")
    each = cpus_each(int(cpus), nodes, seats) if cpus.isdigit() else 0  # 0 = as the session has
    minutes = -(-asked.seconds // 60)
    try:
        quote = quoted(Hub.from_environ(), gpus=gpus, cpus=each, minutes=minutes, patience=TIME_LIMIT)
    except NoHub as error:
        raise CannotRun(str(error)) from None
    if quote is None:
        raise CannotRun("The hub does not answer. Try again in a moment.")
    why, few = ("", 0) if quote.allowed else (quote.message, more)
    if not why and (why := too_many(quote, more)):
        few = more - quote.companions_left
    if asked.ranks - few < fewest:
        raise CannotRun(why)
    asks = f"This session has no room for {more} of {counted(asked.ranks, 'rank')}"
    if few == more:
        return f"{asks}, and gets no more: {why} It begins with {seats}."
    made_up, found = virtual(environ), more - few
    asks = f"{asks}: {what(found, gpus, virtual=made_up)} {'is' if found == 1 else 'are'} asked for."
    begins = f" {why} It begins with {asked.ranks - few}." if why else ""
    return f"{asks} {cost(quote, found, virtual=made_up)}{begins}".strip()


def quoted(hub: Hub, *, gpus: int, cpus: int, minutes: int, patience: float = PATIENCE) -> Quote | None:
    """Return what a companion of one worker would cost; None where the hub does not say within ``patience`` seconds."""
    said: list[Quote] = []

    def ask() -> None:
        try:
            said.append(hub.quote(nodes=1, gpus=gpus, cpus=cpus, minutes=minutes))
        except Refused as error:
            said.append(Quote(allowed=False, message=str(error)))
        except NoHub:
            pass  # nothing was said

    # Beside: a limit of the socket is for each of its words, and who waits here waits for all of them.
    thread = threading.Thread(target=ask, name="carme-quote", daemon=True)
    thread.start()
    thread.join(patience)
    return said[0] if said else None


def what(count: int, gpus: int, *, virtual: bool = False) -> str:
    """Return what is asked for: ``2 companions with 1 GPU each``."""
    having = f" with {counted(gpus, kind_of_gpu({'virtual': virtual}))}" if gpus else ""
    return f"{counted(count, 'companion')}{having}{' each' if having and count > 1 else ''}"


def too_many(quote: Quote, count: int) -> str:
    """Return why a session cannot have so many companions more, "" where it can, or the hub does not say."""
    left, most = quote.companions_left, quote.companions_most
    if not 0 <= left < count:
        return ""
    more = f"{left} more can be had" if left else "no more can be had"
    return f"Each further rank takes a companion, of which a session has {most} at once at most here: {more}."
