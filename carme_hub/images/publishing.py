"""What becomes of the offers of images that users have built: looked at, decided on, published, refused, or put off.

The ``images`` service writes what people say; ``carme-hub image publish``, which is root, calls ``Publisher.run``. One
run of a store at a time. What an image itself does wrong refuses it; what something else does (a directory or a file
server that is silent, a scan that fails, a full disk) says nothing of it, so it is tried again.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from carme_hub.containers.build.publish import (
    ContentChanged,
    PublishOptions,
    prepare,
    publish,
    published_before,
    remove_waiting,
)
from carme_hub.containers.build.publish_system import System
from carme_hub.containers.build.scan import NotAllowed
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.domain.images.audience import is_of, reaches_beyond
from carme_hub.domain.images.builds import CONTAINERFILE, Build, BuildState
from carme_hub.domain.images.offers import CatalogueImage, Offer, To
from carme_hub.domain.images.wanted import Wanted
from carme_hub.domain.wording import escaped
from carme_hub.errors import ContainerError, ContainerUnavailable, StoreError
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore

#: Characters of the packages that an administrator sees.
_MOST_FOUND = 20_000


def due(builds: Iterable[Build], now: float) -> list[Build]:
    """Return the builds with which something is to be done now, in the order in which people asked.

    Those that were put off come last, so that one which takes long holds nobody up who waits for the first time.
    """
    found = [
        (each.wanted.tries, each.wanted.offer.at, each)
        for each in builds
        if each.state is BuildState.READY and not each.published and each.wanted is not None
        if each.wanted.is_due and each.wanted.again <= now
    ]
    return [each for _, _, each in sorted(found, key=lambda one: one[:2])]


@dataclass(slots=True)
class Published:
    """What a run did: paths of images that are in the store now, and how many were refused or put off."""

    paths: list[Path]
    failed: int = 0


class Publisher:
    """Publishes what is due in one store.

    Args:
        options: makes those of one image; its bounds begin then. say: takes a line for whoever runs it.
    """

    def __init__(
        self,
        builds: BuildStore,
        images: ImageStore,
        store: Path,
        options: Callable[[], PublishOptions],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._builds, self._images, self._store = builds, images, store
        self._options, self._clock = options, clock
        self._say: Callable[[str], None] = lambda line: say(escaped(line))  # it may be a terminal of root

    def run(self) -> Published:
        """Do what is due, and what an earlier run that was killed has left.

        Raises:
            StoreBusy: another run is at work. ContainerUnavailable: the store cannot be used. Nothing was changed.
        """
        done = Published([])
        folder = StoreFolder(self._store)
        folder.check()
        with folder.locked("publish"):
            self._repair(done)
            self._look_below()
            for each in due(self._builds.builds(self._clock()), self._clock()):
                build = self._builds.build(each.id, self._clock())
                if build is not None and due([build], self._clock()):  # it may be withdrawn meanwhile
                    self._one(build, done)
            every = self._builds.builds(self._clock())
            waiting = [each.wanted for each in every if each.wanted is not None]
            remove_waiting(self._store, [each.digest for each in waiting if not each.problem])
        return done

    def _repair(self, done: Published) -> None:
        """Write down what is in the store already: an earlier run was killed before it did so."""
        for build in self._builds.builds(self._clock()):
            if build.state is not BuildState.READY or build.published:
                continue
            try:
                named = published_before(build, self._store)
            except ContainerError as error:
                self._say(f"{build.name} of {build.user}: {error}")
                continue
            wanted = build.wanted
            # With another digest than is allowed it is published again; with none that is wanted, it is its user's.
            if named is not None and (wanted is None or wanted.digest in ("", named.digest)):
                self._say(f"{build.name} of {build.user} is in the store already; the rest is done now")
                self._written(build, named.digest, self._store / build.name, done)

    def _look_below(self) -> None:
        """Judge again what waits because of an image below it: that may be offered to these people by now."""
        every = self._builds.builds(self._clock())
        waits = [each for each in every if each.wanted is not None and each.wanted.beyond]
        images = self._images.images() if waits else []
        for build in waits:
            if (wanted := build.wanted) is not None:
                judged = wanted.judged(beyond(build, wanted.offer, images, self._clock()))
                if judged != wanted:
                    self._builds.change_wanted(build.id, wanted, judged)

    def _one(self, build: Build, done: Published) -> None:
        wanted = build.wanted
        if wanted is None:
            return
        known = self._images.image(build.name)
        if known is not None and not is_of(known, build) and published_before(build, self._store) is None:
            # What was offered of that one would be offered of this one, without anybody's leave.
            problem = "another image has, or had, its name; build it again under another one"
            self._store_answer(build, wanted.refused(problem), f"is not published: {problem}", done)
            return
        judged = wanted.judged(self._beyond(build, wanted))
        if judged != wanted:
            if not self._builds.change_wanted(build.id, wanted, judged):
                return
            build, wanted = replace(build, wanted=judged), judged
            if not wanted.is_due:
                self._say(f"{build.name} of {build.user}: an administrator has to allow it. {wanted.beyond}")
                return
        way = System if build.kind == CONTAINERFILE else None
        try:
            if wanted.is_allowed:
                expect = wanted.digest if wanted.needs_leave else ""
                path = publish(build, self._store, self._options(), expect, way)
                named = published_before(build, self._store)
                self._written(build, named.digest if named is not None else "", path, done)
            else:
                made = prepare(build, self._store, self._options(), way)
                found = "\n".join(made.packages)[:_MOST_FOUND]
                what = f"waits for an administrator: {made.digest}, in {made.folder}"
                self._store_answer(build, wanted.prepared(made.digest, found), what, done, failed=0)
        except ContentChanged as error:
            self._store_answer(build, wanted.changed(), f"is not what was allowed: {error}", done)
        except NotAllowed as error:
            self._store_answer(build, wanted.refused(escaped(str(error))), f"is not published: {error}", done)
        except (ContainerUnavailable, OSError, subprocess.SubprocessError) as error:
            why = wanted.put_off(escaped(str(error)), self._clock())
            self._store_answer(build, why, f"is not published yet: {error}", done)
        except ContainerError as error:  # others are published all the same
            why = wanted.refused(escaped(f"it could not be published: {error}"))
            self._store_answer(build, why, f"is not published: {error}", done)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  an error of ours with this image must not stop those of others
            why = wanted.put_off(f"an error that nobody has foreseen ({type(error).__name__})", self._clock())
            self._store_answer(build, why, f"is not published yet: {type(error).__name__}: {error}", done)

    def _beyond(self, build: Build, wanted: Wanted) -> str:
        return beyond(build, wanted.offer, self._images.images(), self._clock())

    def _store_answer(self, build: Build, answer: Wanted, what: str, done: Published, failed: int = 1) -> None:
        done.failed += failed
        self._say(f"{build.name} of {build.user} {what}")
        if not self._builds.change_wanted(build.id, build.wanted, answer):
            self._say(f"{build.name} of {build.user}: something else is wanted meanwhile, so that is not written down")

    def _written(self, build: Build, digest: str, path: Path, done: Published) -> None:
        """Write down that a build is an image of the store, and to whom it is offered."""
        now = self._clock()
        self._images.offer(build.name, Offer(To.USER, build.user, build.user, now))
        said = self._builds.build(build.id, now)  # minutes have passed: it may be withdrawn, or refused
        wanted = said.wanted if said is not None and said.state is BuildState.READY else None
        if wanted is not None and not wanted.problem:
            wanted = wanted.judged(self._beyond(build, wanted))
            own = wanted.allowed == wanted.offer.by or not wanted.needs_leave
            if wanted.is_allowed and (own or wanted.digest == digest):
                self._images.offer(build.name, wanted.offer)
        self._builds.change(build.id, published=build.name, wanted=None)
        done.paths.append(path)


def beyond(build: Build, offer: Offer, images: Iterable[CatalogueImage], now: float) -> str:
    """Return why an offer of a build would pass on its base to people who are not offered that; "" = it would not."""
    return reaches_beyond(build, offer.to, offer.name, images, now)
