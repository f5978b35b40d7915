"""Images that users build: open a build as a batch job of the user, remove one, read its log.

The hub runs nothing of a build and trusts nothing that it writes: the job says by its end whether it is there. The row
is written before the job is submitted, and its id is the job's.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import yaml

from carme_hub.containers.build.job import BuildWork
from carme_hub.containers.registry import cannot_build, cannot_run
from carme_hub.domain.images.builds import (
    BATCH,
    CONDA,
    CONTAINERFILE,
    MOST_TEXT,
    NAMED,
    Build,
    BuildState,
    CannotBuild,
    Limits,
    check_room,
    checked_description,
    checked_name,
    checked_text,
    limits_for,
    own,
    removed_at,
    requirements_of_environment,
)
from carme_hub.domain.images.conda import has_conda_packages, parse_environment
from carme_hub.domain.sessions.companions import CompanionRequest, gpus_of_one_node
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import ContainerError, Refused, StoreError
from carme_hub.images.offered import OfferedImages
from carme_hub.images.settings import CarmeImages
from carme_hub.spawners.companions.build_work import checked_containerfile, packages_work, system_work
from carme_hub.spawners.companions.companions import cancel_batch_job, open_companion
from carme_hub.spawners.hub.images.of_sessions import image_and_site
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.store.threads import in_store_thread

#: Seconds for which the files of a removed build are still removed by jobs of its user, and how many at a time.
REMOVED_KEPT, MOST_REMOVED = 400 * 86_400.0, 20
_GIB = 1 << 30
KINDS = ("requirements", "packages", "environment", CONTAINERFILE)
#: Kinds of images that have packages of pip alone, with which another image can begin.
_PACKAGES = ("requirements", "packages", "environment")

#: One lock per user: two requests at once must not both take the last place.
_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user wants built; ``text`` as ``kind`` has it. ``context``: folder with the files of a Containerfile."""

    name: str
    kind: str
    text: str
    minutes: int = 30
    description: str = ""
    context: str = ""

    def checked(self, settings: CarmeImages) -> Asked:
        """Return it with the packages as pip takes them, or as what else it is.

        Raises:
            CannotBuild: something of it cannot be used.
        """
        if self.kind not in KINDS:
            raise CannotBuild(f"kind is one of {', '.join(KINDS)}.")
        kind, text = self.kind, self.text
        if kind == "environment":
            kind, text = _of_environment(text, settings)
        elif kind == CONTAINERFILE:
            text = checked_containerfile(text, self.context, settings)
        else:
            text = checked_text(text)
        description = checked_description(self.description)
        return replace(self, kind=kind, name=checked_name(self.name), text=text, description=description)


def _of_environment(text: str, settings: CarmeImages) -> tuple[str, str]:
    """Return what kind of build a file asks for, and its text."""
    if len(text) > MOST_TEXT:
        raise CannotBuild(f"environment.yml is too long: at most {MOST_TEXT >> 10} KiB.")
    try:
        # A few lines of them stand for gigabytes.
        if any(isinstance(each, yaml.AliasToken) for each in yaml.scan(text, Loader=yaml.SafeLoader)):
            raise CannotBuild("environment.yml may not refer to other parts of itself (*name).")
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CannotBuild("The file is no environment.yml: it is not YAML.") from error
    if has_conda_packages(value):
        return CONDA, parse_environment(value, settings.build_channels).text()
    return "environment", requirements_of_environment(value)


def catalogue(hub: HubContext) -> OfferedImages:
    """Return the images of the hub; raise ``CannotBuild`` where it keeps none."""
    if hub.images is None:
        raise CannotBuild("This hub keeps no catalogue of images, so nobody builds any (configure(c, images=True)).")
    return hub.images


def limits_of(hub: HubContext, user: Any) -> Limits:
    """Return what a user may build."""
    return limits_for([group.name for group in user.groups], catalogue(hub).settings.build_limits)


async def builds_of(hub: HubContext, user: str) -> list[Build]:
    """Return a user's images and builds, the newest first."""
    images = catalogue(hub)
    return own(await in_store_thread(images.builds.builds, time.time(), user), user)


async def removed_of(hub: HubContext, user: str) -> list[str]:
    """Return the ids of a user's builds whose files are to be removed."""
    now = time.time()
    return (await in_store_thread(catalogue(hub).builds.removed, user, now - REMOVED_KEPT, now))[-MOST_REMOVED:]


async def build_of(hub: HubContext, user: str, id: str) -> Build:
    """Return one build of a user.

    Raises:
        CannotBuild: the user has none of this id.
    """
    found = await in_store_thread(catalogue(hub).builds.build, id, time.time())
    if found is None or found.user != user or found.state is BuildState.REMOVED:
        raise CannotBuild("You have no such image.", reason="unknown")
    return found


async def open_build(
    hub: HubContext, spawner: Any, origin: Session, asked: Asked, key: str = ""
) -> tuple[Build, tuple[str, ...]]:
    """Submit the job that builds an image; return the build and warnings of the policy. With the same key it is one.

    Args:
        origin: the session, or what stands for one (``companions.outside``), whose image is the base and whose profile
            and account the job has.

    Raises:
        Refused: it cannot be built, or the job is not allowed. StoreError: the database fails; nothing was submitted.
    """
    images, user = catalogue(hub), str(spawner.user.name)
    asked = asked.checked(images.settings)
    limits = limits_of(hub, spawner.user)
    async with _locks.setdefault(user, asyncio.Lock()):
        key = key or uuid.uuid4().hex
        id = str(uuid.uuid5(uuid.UUID(origin.id), key))
        now = time.time()
        known = await in_store_thread(images.builds.build, id, now)
        if known is not None:
            return known, ()
        await in_store_thread(images.builds.settle, now)  # the name of one that has failed is free
        check_room(await in_store_thread(images.builds.builds, now, user), limits)
        build = Build(id, user, asked.name, "", kind=asked.kind, text=asked.text, description=asked.description)
        build = replace(build, created=now, days=limits.days)
        gone, size = await removed_of(hub, user), int(limits.gib * _GIB)
        if asked.kind == CONTAINERFILE:
            work: BuildWork = await system_work(hub, spawner, build, asked.context, size, gone)
            build = work.build
        else:
            base = await base_of(hub, spawner, origin, asked.kind)
            origin, below = base.origin, base.below
            job = replace(build, base=base.name, base_digest=base.digest)
            work = packages_work(images.settings, job, size, gone, below)
            build = replace(job, text=whole_text(job.text, below))
        wanted = await _wanted(spawner, origin, asked, limits)
        await in_store_thread(images.builds.add, build)
        try:
            _, warnings = await open_companion(hub, spawner, origin, wanted, key, work)
        except Refused as error:
            await _forget(hub, build, error.message)
            raise
    hub.log.info("%s builds image %s on top of %s: job of session %s", user, build.name, build.base, id)
    return build, warnings


async def _forget(hub: HubContext, build: Build, why: str) -> None:
    try:
        await _removed(hub, build.id, why)
    except StoreError as error:  # it fails by itself later: it has no job
        hub.log.warning("The refused build %s of %s is not removed yet: %s", build.id, build.user, error)


async def _removed(hub: HubContext, id: str, why: str) -> None:
    builds, now = catalogue(hub).builds, time.time()
    await in_store_thread(lambda: builds.change(id, state=BuildState.REMOVED, ended=now, problem=why))


@dataclass(frozen=True, slots=True)
class Base:
    """What an image is built on.

    Attributes:
        name, digest: of the image of the site. origin: the session, or what stands for one, with that image.
        below: an image of the user with whose packages the new one begins; None = none.
    """

    name: str
    digest: str
    origin: Session
    below: Build | None = None


async def base_of(hub: HubContext, spawner: Any, origin: Session, kind: str = "requirements") -> Base:
    """Return what an image on top of a session's would be built on.

    Args:
        kind: of the build.

    Raises:
        CannotBuild: none can be; the message says why.
    """
    request, view = origin.request, await catalogue(hub).view()
    below = view.builds.get(request.image)
    of_site = request.image in {each.name for each in spawner.site_images()}
    if below is not None and (of_site or below.user != spawner.user.name):
        below = None
    if below is not None and below.kind not in _PACKAGES:  # such as a later release may have built
        raise CannotBuild(
            f"{below.name} has more than packages of pip, and no packages are put on top of it. Choose an image of the "
            "site, and list all packages."
        )
    if below is not None and kind == CONDA:
        raise CannotBuild(f"Packages of conda are put on top of an image of the site; {below.name} is your own.")
    if below is not None:
        request = replace(request, image=below.base, image_digest=below.base_digest)
    if request.image in catalogue(hub).retired(view):  # nobody could start with what is built on it
        raise CannotBuild(f"{request.image} is not offered any more. Build on top of another image.")
    try:
        image, site = await image_and_site(hub, spawner, spawner.owner(), request.image, request.image_digest)
    except ContainerError as error:
        raise CannotBuild(str(error)) from error
    if why := cannot_build(site.runtime) or cannot_run(site.runtime, image):
        raise CannotBuild(why)
    request = replace(request, image_digest=image.digest)
    return Base(request.image, image.digest, replace(origin, request=request), below)


async def terms_of(hub: HubContext, spawner: Any, origin: Session) -> dict[str, object]:
    """Return what an image on top of a session's would be, for who is about to build one; nothing is written.

    Raises:
        CannotBuild: this hub keeps no images. StoreError: the database fails.
    """
    limits, problem, base = limits_of(hub, spawner.user), "", None
    mine = await builds_of(hub, str(spawner.user.name))
    try:
        base = await base_of(hub, spawner, origin)
        check_room(mine, limits)
    except CannotBuild as error:
        problem = error.message
    return {
        "problem": problem,
        "base": base.name if base is not None else origin.request.image,
        "base_digest": base.digest if base is not None else "",
        "below": base.below.name if base is not None and base.below is not None else "",
        "have": sum(each.state in NAMED for each in mine),
        "builds": limits.builds,
        "gib": limits.gib,
        "minutes": limits.minutes,
        "days": limits.days,
    }


def whole_text(text: str, below: Build | None) -> str:
    """Return all packages of an image, for people: those of the image with which it begins come first."""
    return f"# as in {below.name}:\n{below.text}# and on top:\n{text}" if below is not None else text


async def _wanted(spawner: Any, origin: Session, asked: Asked, limits: Limits) -> CompanionRequest:
    offer = await spawner.offer()
    profile: Profile | None = next((each for each in offer.profiles if each.slug == origin.request.profile), None)
    if profile is None:
        raise CannotBuild("The profile of this session is no longer offered to you.")
    # As few GPUs as the profile allows: a build needs none.
    none = profile.gpus is None or profile.gpus.count.allows(0)
    gpus = 0 if none else min(gpus_of_one_node(origin.request, profile), default=0)
    minutes = min(asked.minutes, limits.minutes, profile.time_minutes.max)
    return CompanionRequest(
        gpus=gpus, minutes=minutes, name=f"image {asked.name}", run=f"{BATCH}{asked.name}", python="python3"
    )


async def remove_build(hub: HubContext, user: str, id: str) -> Build:
    """Remove an image of a user, or end its build; the next job of the user removes its files.

    Raises:
        Refused: the user has none, or a session has it.
    """
    build = await build_of(hub, user, id)
    in_use = [each for each in hub.registry.open_sessions() if each.user == user and each.request.image == build.name]
    if in_use and build.state is BuildState.READY:
        raise CannotBuild(f"A session of yours has {build.name}. Stop it first.")
    if build.state is BuildState.BUILDING and await hub.registry.get(id) is not None:
        await cancel_batch_job(hub, user, id)
    await _removed(hub, id, "Removed by its user.")
    catalogue(hub).look_again()
    hub.log.info("%s has removed image %s (%s)", user, build.name, id)
    return replace(build, state=BuildState.REMOVED)


def as_json(hub: HubContext, build: Build) -> dict[str, object]:
    """Return a build for programs; times are UTC epoch seconds, 0 = not yet."""
    session = hub.registry.current(build.id)
    ready = build.state is BuildState.READY
    return {
        "id": build.id,
        "name": build.name,
        "state": build.state.value,
        "problem": build.problem,
        "base": build.base,
        "base_digest": build.base_digest,
        "kind": build.kind,
        "packages": build.text,
        "description": build.description,
        "created": int(build.created),
        "ended": int(build.ended),
        "used": int(build.used),
        "until": int(removed_at(build)) if ready else 0,
        "job": session.job_id if session is not None else 0,
        "published": build.published,
    }
