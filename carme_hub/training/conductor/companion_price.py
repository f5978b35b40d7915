"""What a run costs beyond its session is said before anything is submitted for it."""

from __future__ import annotations

from collections.abc import Mapping

from carme_hub.training.run.description import counted, kind_of_gpu
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import Place, Room
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.batch_job import broker_here
from carme_hub.training.session.companions import Quote
from carme_hub.training.session.step_broker import NoBroker

from .companion import STARTING


def needs(where: Place, *, virtual: bool = False) -> str:
    """Return what a companion has, in words."""
    gpus = f" with {counted(where.gpus, kind_of_gpu({'virtual': virtual}))}" if where.gpus else ""
    return f"{counted(where.nodes, 'node')}{gpus}"


def minutes(asked: RunOptions) -> int:
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
