"""Submit a run as a batch job (``--submit``): choose its nodes, say its price, and request it from the hub.

The job has the image, the profile, the account and the folders of the session, and the run's folder is in the home, so
that every later session sees its state, logs and curves. What pip had installed in the session is kept in that folder.

From outside of a session (``session.outside``) user options of a server say what the job gets, and the files of the run
go along: the home there may be another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from carme_hub.training.conductor.companion_price import cost_text, job_capacity, resources_text
from carme_hub.training.records import record
from carme_hub.training.run import environment
from carme_hub.training.run.description import pluralize
from carme_hub.training.run.failures import CannotRun, Interrupted
from carme_hub.training.run.placement import (
    CompanionSize,
    JobCapacity,
    Placement,
    companion_size,
    divide_ranks,
    gpus_of_rank,
)
from carme_hub.training.run.run_folder import Run, has_virtual_gpus
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.companions import Hub, NoHub, Refused
from carme_hub.training.session.outside import Access

#: The name of a run in a question for the price: its folder is created when the price is known.
UNNAMED = "run"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A batch job that may be requested: the options of its run, its size, its minutes, and its price as text."""

    options: RunOptions
    size: CompanionSize
    minutes: int
    price: str


def submit(
    options: RunOptions,
    create: Callable[[RunOptions, str], Run],
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    access: Access | None = None,
) -> Run:
    """Submit a run, and return it; it waits in Slurm's queue.

    Args:
        create: creates the run, of the options with its nodes, and what was said of its price.
        say: prints a line for the user. access: to the hub from outside of a session.

    Raises:
        CannotRun: with what to do. Where the hub does not answer, the run may have been submitted all the same.
    """
    hub = _hub(environ, access)
    wanted = batch_job(options, environ, hub)
    say(wanted.price)
    run = create(wanted.options, wanted.price)
    request = run.request()
    python, key = str(request.get("python") or sys.executable), str(request["key"])
    kept: dict[str, Any] = {}
    outside: dict[str, Any] = {"stage": True} if options.stage else {}  # an older hub does not know it
    if access is not None:
        try:
            outside["files"] = _files(run)
        except CannotRun as error:
            run.set_batch_job({"state": "ended", "said": str(error)})
            raise
        python, kept = "", {"access": access.kept(hub.user)}  # the hub finds the Python of an image not seen from here
        run.set_batch_job({"state": "waiting", "said": "", **kept})
    try:
        job = hub.open(
            **wanted.size,
            minutes=wanted.minutes,
            name=run.id,
            key=key,
            run=run.id,
            python=python,
            requeue=options.requeue,
            **outside,
        )
    except Refused as error:
        run.set_batch_job({"state": "ended", "said": str(error)})
        raise CannotRun(str(error)) from None
    except KeyboardInterrupt:
        (run.folder / "stop").touch(mode=0o600)
        raise Interrupted(
            f"{run.id} may have been submitted. If it was, it ends when it begins; carme-hub runs stop {run.id} ends "
            "it before."
        ) from None
    except NoHub as error:
        raise CannotRun(
            f"{error} Whether {run.id} was submitted is not known; carme-hub runs shows it when the hub answers."
        ) from None
    news = {"id": job.id, "state": job.state, "said": job.said, "job": job.job, "created": job.created}
    run.set_batch_job(news | kept)
    return run


def _hub(environ: Mapping[str, str], access: Access | None) -> Hub:
    try:
        return Hub.from_environ(environ) if access is None else access.connect(environ)
    except (NoHub, Refused) as error:
        raise CannotRun(str(error)) from None


def _files(run: Run) -> dict[str, str]:
    """Return the files of a run that its job needs, texts by name.

    Raises:
        CannotRun: a script is too large to be kept, or is no text.
    """
    found = {}
    names = ("asked.json", "state.json", environment.SUBMITTED_FILE)
    try:
        for name in (*names, *((record.SCRIPT,) if run.request()["kind"] == "script" else ())):
            found[name] = (run.folder / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise CannotRun(
            "The script cannot be sent: it is very large, or no text. Put it into your home on the cluster, and send a "
            "short one that runs it."
        ) from None
    return found


def batch_job(options: RunOptions, environ: Mapping[str, str] = os.environ, hub: Hub | None = None) -> BatchJob:
    """Return the batch job of a run, with its price; nothing is requested.

    Args:
        hub: default: that of this session.

    Raises:
        CannotRun: the hub would refuse it, or does not answer.
    """
    name = options.name or UNNAMED
    minutes = -(-options.seconds // 60)
    try:
        hub = hub or Hub.from_environ(environ)
        # Outside of a session a rank has a GPU where the profile has any, as in a session that has one.
        outside = JobCapacity(1, int(bool(hub.quote(nodes=1).gpus_of_one_node))) if hub.user else None
        capacity = outside or job_capacity(environ)
        each = gpus_of_rank(options, capacity)
        limits = hub.quote(nodes=1, gpus=each)
        if not limits.batch_jobs:
            raise CannotRun("The hub is older than this image, and has no batch jobs. Leave --submit out.")
        allowed = limits.gpus_of_one_node
        # All ranks are in the job, as in a companion alone.
        chosen = divide_ranks(replace(options, submit=False, only_companion=True), capacity, allowed)
        if chosen is None:
            raise CannotRun(
                f"{pluralize(options.ranks, 'rank')} with {pluralize(each, 'GPU')} each cannot be divided among nodes: "
                f"one node of this profile may have {', '.join(map(str, allowed))} GPUs."
            )
        nodes = chosen.nodes or 1
        placement = Placement(options.ranks, nodes, each, companion=True)
        size = companion_size(chosen, placement)
        quote = hub.quote(**size, minutes=minutes, run=name)
    except (NoHub, Refused) as error:
        raise CannotRun(str(error)) from None
    if not quote.allowed:
        raise CannotRun(quote.message)
    chosen = replace(chosen, nodes=nodes, gpus_per_task=each, only_companion=False, detach=True, submit=True)
    resources = resources_text(placement, virtual=quote.virtual or has_virtual_gpus(environ))
    price = f"A batch job of {resources} is requested. {cost_text(quote)}".strip()
    return BatchJob(chosen, size, minutes, price)
