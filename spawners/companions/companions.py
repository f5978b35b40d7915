"""Companions of a running session, with more nodes: quote cost and start, open, give back, list.

A companion is admitted, held for and charged like any session, in the same order: hold, row, job. Only the reconciler
closes it, and also ends it with its session. The REST handlers of companions and the home page call these functions.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from carme_hub.containers.build.job import BuildWork
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.reasons import refusal_sentence
from carme_hub.domain.sessions.companions import (
    CompanionRequest,
    CompanionStart,
    NoCompanion,
    companion_start,
    describe_companion,
    gpus_of_one_node,
    request_for,
)
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import ConfigError, ContainerError, Refused, SlurmRejected, StoreError
from carme_hub.sessions.submission import submit_once
from carme_hub.spawners.companions.script import render_batch_job, render_companion
from carme_hub.spawners.form.cost import Cost, RemainingBudget
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.hub.images.of_sessions import image_and_site
from carme_hub.spawners.hub.reporting import with_folders, without_server
from carme_hub.spawners.hub.shared import HubContext

#: The end reason of a companion that was given back, and of a batch job that was cancelled or is continued.
GIVEN_BACK, CANCELLED = "Given back.", "It was cancelled."
CONTINUED = "Its time was over, and another job continues it."
NOT_CONTINUED = "Its time was over, and it is not continued:"
#: Jobs that are tried for the continuation of one run, where Slurm refuses them or a restart of the hub lost them.
MOST_TRIES = 5
#: Reasons of refusals that are over a little later: the job that ended is completing still, or a service restarts.
OF_THE_MOMENT = frozenset({"slurm-rejected", "quotas-service-down", "too-slow", "starts-stopped"})
#: Seconds that a request waits until Slurm accepts the job; after that the submission continues by itself.
SUBMIT_WAIT = 15.0
_MILLI_GPU_HOUR = 3_600_000
NO_FILES: Mapping[str, str] = MappingProxyType({})

#: One lock per session: two requests at once must not both open the last companion that is allowed.
_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
_submitting: set[asyncio.Task[Any]] = set()


class KeyUsed(Refused):
    """The Idempotency-Key was used for another request."""

    reason = "key-used"


@dataclass(frozen=True, slots=True)
class Quote:
    """The resources, cost and expected start of a companion; nothing is written.

    Attributes:
        message: the cost as a sentence, or why it is not allowed. price: money, "" if the site has no price.
        left_to_open, most: companions that the session may still open, and may have at once.
        gpus_of_one_node: the numbers of GPUs that the profile allows on a node. virtual: they are virtual GPUs.
    """

    allowed: bool
    message: str
    request: Request | None = None
    cost: Cost | None = None
    left: str = ""
    price: str = ""
    start: CompanionStart | None = None
    left_to_open: int = 0
    most: int = 0
    gpus_of_one_node: tuple[int, ...] = ()
    virtual: bool = False

    def as_json(self) -> dict[str, object]:
        """Return it for programs."""
        request, start = self.request, self.start
        return {
            "allowed": self.allowed,
            "message": self.message,
            "price": self.price,
            "gpu_seconds": -(-self.cost.amount // 1000) if self.cost is not None else 0,
            "left": self.left,
            "expected_start": int(start.expected) if start is not None else 0,
            "said": start.text if start is not None else "",
            "nodes": request.nodes if request is not None else 0,
            "gpus": request.gpus.count if request is not None else 0,
            "gpu_type": request.gpus.type if request is not None else "",
            "cpus": request.cpus if request is not None else 0,
            "memory_mib": request.memory_mib if request is not None else 0,
            "minutes": request.time_limit if request is not None else 0,
            "companions_left": self.left_to_open,
            "companions_most": self.most,
            "gpus_of_one_node": self.gpus_of_one_node,
            "starts_now": self.start is None or self.start.now or not self.start.known,
            "excludes_nodes": True,
            "batch_jobs": True,
            "virtual": self.virtual,
        }


async def quote(hub: HubContext, spawner: Any, session: Session, wanted: CompanionRequest) -> Quote:
    """Return the quote for a companion; nothing is written, and Slurm is not queried.

    Raises:
        StoreError: the balance of GPU time cannot be read.
    """
    most = spawner.max_batch_jobs if wanted.run else spawner.max_companions
    more = max(0, most - len(_of_its_kind(hub, session, wanted)))
    allowed_gpus: tuple[int, ...] = ()
    try:
        offer: Offer = await spawner.offer()
        profile = _profile_of(session, offer)
        allowed_gpus = gpus_of_one_node(session.request, profile) if profile is not None else ()
        request = _checked_request(hub, spawner, session, wanted, offer)
        start = _start_of(offer, request)
        cost, lefts = await hub.cost(spawner.user, request)
    except Refused as error:
        return Quote(allowed=False, message=error.message, left_to_open=more, most=most, gpus_of_one_node=allowed_gpus)
    left = lefts.get(request.account, RemainingBudget("")).text
    if cost is None:
        free = "GPU time is not counted here."
        return Quote(True, free, request, None, "", "", start, more, most, allowed_gpus, spawner.virtual)
    allowed, money = cost.state != "refused", _money(hub, cost)
    return Quote(allowed, cost.sentence, request, cost, left, money, start, more, most, allowed_gpus, spawner.virtual)


async def open_companion(
    hub: HubContext,
    spawner: Any,
    session: Session,
    wanted: CompanionRequest,
    key: str = "",
    files: Mapping[str, str] | BuildWork = NO_FILES,
) -> tuple[Session, tuple[str, ...]]:
    """Open a companion; return it and warnings of the policy. With the same key it is opened once.

    Args:
        files: of the run of a batch job whose folder is not in the home yet, texts by name; or the image to build.

    Raises:
        Refused: the session does not run, its profile or the policy does not allow it, or Slurm refused.
        StoreError: the database cannot store it; nothing was submitted.
    """
    # Batch jobs are counted for the user, companions for the session.
    async with _locks.setdefault(session.user if wanted.run else session.id, asyncio.Lock()):
        id = str(uuid.uuid5(uuid.UUID(session.id), key) if key else uuid.uuid4())
        found = await hub.registry.get(id) if key else None
        if found is not None:
            if _is_different(found, wanted):
                raise KeyUsed("This Idempotency-Key was used for another companion. Take a new one.")
            return found, ()
        offer: Offer = await spawner.offer()
        request = _checked_request(hub, spawner, session, wanted, offer)
        if wanted.run and any(each.request.batch == wanted.run for each in hub.registry.batch_jobs_of(session.user)):
            raise NoCompanion(f"You have a batch job for a run {wanted.run} already. Choose another name.")
        _start_of(offer, request)
        warnings: list[str] = []
        held = time.time()
        replaced = await hub.registry.get(wanted.replaces) if wanted.replaces else None
        given_back = replaced is not None and replaced.parent == session.id and bool(replaced.cancel_wanted)
        request = await hub.admit(
            *(spawner.user, id, request, lambda _percent, text: warnings.append(text)),
            instead_of=wanted.replaces if given_back else "",
        )
        opened, _ = await hub.registry.intend(
            *(id, session.user, session.server_name, request), parent=session.id, held=held
        )
        await _submit(hub, spawner, opened, files)
    kind = "batch job" if wanted.run else "companion"
    hub.log.info("Session %s of %s has the %s %s: %s", session.id, session.user, kind, id, describe_companion(request))
    return hub.registry.current(id) or opened, tuple(warnings)


async def cancel_batch_job(hub: HubContext, user: str, id: str) -> Session:
    """End a batch job of a user, whether it waits or runs; the reconciler cancels it until it has ended.

    Raises:
        Refused: the user has no such batch job.
    """
    found = await hub.registry.get(id)
    of_user = found is not None and found.user == user and found.cluster == hub.registry.cluster
    if found is None or not of_user or not found.request.batch:
        raise NoCompanion("There is no such batch job.", reason="unknown")
    await hub.reconciler.cancel(id, CANCELLED)
    return hub.registry.current(id) or await hub.registry.get(id) or found


async def give_back(hub: HubContext, session: Session, id: str) -> Session:
    """End a companion of a session; the reconciler cancels its job until the job has ended.

    Raises:
        Refused: the session has no such companion.
    """
    found = await hub.registry.get(id)
    if found is None or found.parent != session.id:
        raise NoCompanion("This session has no such companion.", reason="unknown")
    await hub.reconciler.cancel(id, GIVEN_BACK)
    return hub.registry.current(id) or await hub.registry.get(id) or found


def _checked_request(
    hub: HubContext, spawner: Any, session: Session, wanted: CompanionRequest, offer: Offer
) -> Request:
    if session.parent:
        raise NoCompanion("A companion cannot have companions. Use the id of its session.")
    if session.state is not SessionState.RUNNING or session.is_ending:
        raise NoCompanion("Only a running session can have more nodes.")
    most = spawner.max_batch_jobs if wanted.run else spawner.max_companions
    if len(_of_its_kind(hub, session, wanted)) >= most:
        if wanted.run:
            raise NoCompanion(f"You may have {most} batch jobs at once here. Cancel one, or wait for an end.")
        raise NoCompanion(f"A session has {most} companions at most here. Give one back first.")
    profile = _profile_of(session, offer)
    if profile is None:
        raise NoCompanion("The profile of this session is no longer offered to you.")
    left = profile.time_minutes.max
    if not wanted.run:
        left = _minutes_left(hub.reconciler.verdict(session.id).job, left, time.time())
    return request_for(wanted, session.request, profile, minutes_left=left, most_nodes=spawner.companion_nodes)


def _of_its_kind(hub: HubContext, session: Session, wanted: CompanionRequest) -> list[Session]:
    """Return what counts towards the limit: the user's open batch jobs, or the session's companions."""
    if wanted.run:
        return list(hub.registry.batch_jobs_of(session.user))
    found = [each for each in hub.registry.companions_of(session.id) if not each.request.batch]
    return [each for each in found if not (each.id == wanted.replaces and each.is_ending)]


def _profile_of(session: Session, offer: Offer) -> Profile | None:
    return next((each for each in offer.profiles if each.slug == session.request.profile), None)


def _minutes_left(job: Job | None, most: int, now: float) -> int:
    """Return the minutes left of a session's job; without a time limit, the profile's maximum."""
    if job is None or not job.start:
        raise NoCompanion("Slurm does not show this session's job as running yet. Try again in a moment.")
    return int(job.start + 60 * job.time_limit - now) // 60 if job.time_limit else most


def _start_of(offer: Offer, request: Request) -> CompanionStart:
    """Return when it would start; raise ``NoCompanion`` if no nodes could ever run it."""
    now = time.time()
    start = companion_start(offer.cluster, request, now, lambda at: clock(at, now), virtual=offer.virtual)
    if start.never:
        raise NoCompanion(f"{start.text[:1].upper()}{start.text[1:]}.")
    if offer.bookings is None:
        return start
    inside = offer.bookings.inside(request)
    if inside is not None:
        room = offer.bookings.has_room(inside, request.gpus.count)
        where = f"in your booking “{inside.title}”"
        return start if room else CompanionStart(f"all GPUs {where} are in use, so it waits for some")
    one = request.on_one_node()
    found = offer.bookings.conflict(one)
    if found is None:
        return start
    said = f"{start.text.removesuffix('; starts now')}; from {clock(found.at, now)} they are booked, so it may wait"
    return CompanionStart(said, expected=found.expected or 0.0)


def _money(hub: HubContext, cost: Cost) -> str:
    price = hub.admission.settings.price_of_gpu_hour if hub.admission is not None else ""
    if hub.admission is None or not price or not cost.amount:
        return ""
    exact = Decimal(cost.amount) / _MILLI_GPU_HOUR * Decimal(price)
    return f"{exact.quantize(Decimal('0.01'), ROUND_HALF_UP)} {hub.admission.policy().currency}".strip()


def _is_different(found: Session, wanted: CompanionRequest) -> bool:
    request = found.request
    asked = wanted.nodes, wanted.gpus, wanted.name, wanted.exclude
    return (request.nodes, request.gpus.count, request.purpose, request.exclude) != asked


async def continue_batch_job(hub: HubContext, user: Any, session: Session) -> str:
    """Open the batch job that continues the run of one that has ended; return a sentence for its user.

    It is admitted and held for anew. A repeated call opens nothing more.

    Args:
        user: JupyterHub's user. session: of the job that has ended, which is open still.

    Raises:
        CarmeError: it is not settled yet; call it again later.
    """
    id, last = "", ""
    for number in range(MOST_TRIES):
        id = str(uuid.uuid5(uuid.UUID(session.id), f"continued-{number}"))
        found = await hub.registry.get(id)
        if found is None:
            break
        if found.job_id:
            return CONTINUED
        if found.state is not SessionState.ENDED:  # a hub that restarted looks for its job
            raise StoreError(f"It is unknown whether the next job {id} was submitted")
        last = found.end_reason  # it never got a job
    else:
        return f"{NOT_CONTINUED} {last}"
    if not hub.associations.known:
        raise StoreError("Slurm has not named accounts yet")
    try:
        if _profile_of(session, await user.spawner.offer()) is None:
            raise NoCompanion("The profile of this session is no longer offered to you.")
        held = time.time()
        request = await hub.admit(user, id, session.request, lambda _percent, _text: None, instead_of=session.id)
        opened, _ = await hub.registry.intend(
            *(id, session.user, session.server_name, request), parent=session.parent, held=held
        )
        now = hub.registry.current(session.id)
        if now is not None and now.cancel_wanted:  # meanwhile
            await hub.registry.close(id, now.cancel_reason)
            await hub.release_hold(id)
            return now.cancel_reason
        await _submit(hub, user.spawner, opened)
    except Refused as error:
        if error.reason in OF_THE_MOMENT:
            raise
        hub.log.info("The batch job %s of %s is not continued: %s", session.id, session.user, error)
        return f"{NOT_CONTINUED} {error.message}"
    submitted = hub.registry.current(id)
    if submitted is not None and not submitted.job_id:
        raise StoreError(f"The next job {id} is being submitted")
    hub.log.info("The batch job %s of %s is continued by %s", session.id, session.user, id)
    return CONTINUED


async def _submit(
    hub: HubContext, spawner: Any, session: Session, files: Mapping[str, str] | BuildWork = NO_FILES
) -> None:
    """Submit a companion's job; wait ``SUBMIT_WAIT`` seconds for it, after which it continues by itself."""
    request = session.request
    try:
        owner = spawner.owner()
        image, site = await image_and_site(hub, spawner, owner, request.image, request.image_digest)
        site = await with_folders(hub, spawner, site, request)
        server = await without_server(hub, spawner, session)
        if request.batch:
            spec = render_batch_job(session.id, owner, request, image, site, files, session.parent, server)
        else:
            spec = render_companion(session.id, session.parent, owner, request, image, site, server)
    except (ContainerError, Refused) as error:
        await hub.registry.close(session.id, str(error))
        await hub.release_hold(session.id)
        raise NoCompanion(str(error)) from error

    async def submit() -> None:
        try:
            await submit_once(
                hub.registry,
                hub.reconciler,
                hub.client,
                session,
                spec,
                log=hub.log,
                report=lambda text: hub.log.debug(text),
            )
        except (ConfigError, SlurmRejected):
            await hub.release_hold(session.id)
            raise

    task = asyncio.create_task(submit(), name=f"carme-companion-{session.id}")
    _submitting.add(task)
    task.add_done_callback(_submitted)
    done, _ = await asyncio.wait([task], timeout=SUBMIT_WAIT)
    try:
        if done:
            task.result()
    except SlurmRejected as error:
        raise NoCompanion(refusal_sentence(error.message), reason="slurm-rejected") from error
    except ConfigError as error:
        raise NoCompanion(str(error)) from error


def _submitted(task: asyncio.Task[Any]) -> None:
    _submitting.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved, since asyncio logs exceptions that nobody has retrieved


HubContext.continue_batch_job = continue_batch_job
