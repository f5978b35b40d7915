"""The resources and the price of a companion, as text; shown before anything is requested."""

from __future__ import annotations

from collections.abc import Mapping

from carme_hub.training.run.description import gpu_kind, pluralize
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import JobCapacity, Placement
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.batch_job import broker_here
from carme_hub.training.session.companions import Quote
from carme_hub.training.session.step_broker import Allocation, NoBroker

from .companion import START_MINUTES


def resources_text(placement: Placement, *, virtual: bool = False) -> str:
    """Describe the resources of a companion."""
    gpus = f" with {pluralize(placement.gpus, gpu_kind({'virtual': virtual}))}" if placement.gpus else ""
    return f"{pluralize(placement.nodes, 'node')}{gpus}"


def companion_minutes(options: RunOptions) -> int:
    """Return the minutes to request for a companion; 0 = as long as the session."""
    return -(-options.seconds // 60) + START_MINUTES if options.seconds else 0


def job_capacity(environ: Mapping[str, str]) -> JobCapacity:
    """Return the resources of the session's job from Slurm's variables; with several nodes, from the broker."""
    gpus, cpus = environ.get("SLURM_GPUS_ON_NODE", ""), environ.get("SLURM_CPUS_ON_NODE", "")
    if _one_node(environ):
        return JobCapacity(1, int(gpus) if gpus.isdigit() else 0, int(cpus) if cpus.isdigit() else 0)
    allocation = _allocation(environ)
    return JobCapacity(len(allocation.nodes), allocation.gpus, allocation.cpus)


def job_nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the nodes of the session's job; errors as ``job_capacity``."""
    one = _one_node(environ)
    return (one,) if one else _allocation(environ).nodes


def _one_node(environ: Mapping[str, str]) -> str:
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    return nodes if not set("[,") & set(nodes) else ""


def _allocation(environ: Mapping[str, str]) -> Allocation:
    try:
        return broker_here(environ).allocation()
    except NoBroker as error:
        raise CannotRun(str(error)) from None


def cost_text(quote: Quote, count: int = 1, *, virtual: bool = False) -> str:
    """Describe the cost and the start of so many companions of a quote."""
    text = " ".join(filter(None, (_sentence(quote.message), _sentence(quote.said))))
    if count == 1 or not text:
        return text
    hours = f" All of them: up to {count * quote.gpu_seconds / 3600:.2f} {gpu_kind({'virtual': virtual})}-hours."
    return f"Each of them: {text}{hours if quote.gpu_seconds else ''}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
