"""The terms of images that users build: how builds ended, what is used, and what is told, then removed, unused.

The files are the user's: a job or a command of the user removes them later (``carme_hub.node.images.layer``). Nobody
can be told who has left. An image of a user whom neither the hub nor the system's directory knows is removed after the
same time, if that stays so; while either does not answer, or the directory knows the user, it stays.

An image contains what is below it, so nobody starts with one whose base is retired; its user is told of the date.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from tornado.httpclient import HTTPClientError

from carme_hub.domain.images.builds import (
    TOLD_BEFORE,
    Build,
    BuildState,
    is_over,
    is_to_be_told,
    removed_at,
)
from carme_hub.domain.images.offers import Retirement
from carme_hub.domain.wording import day
from carme_hub.images.accounts import account_exists
from carme_hub.images.catalogue import sessions_by_image
from carme_hub.services.hub_api import tell_hub
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Path of the hub's REST to which messages are sent.
MESSAGES = "carme/console/messages"
#: Seconds for which a use is not stored again.
_USED_STEP = 3600.0
#: Seconds for which the hub is not asked again about a user whom it could not tell.
_PAUSE = 3600.0
#: What an image says whose user is gone.
GONE = "Neither the hub nor the directory of users knows its user."
_GONE_NO_MORE = {"problem": ""}


class BuildTerms:
    """Looks at all builds of a cluster from time to time.

    Args:
        tell: sends a JSON object to a path of the hub's REST. knows: whether the directory knows a user, None = it
            does not answer; beside others whom it knows.
    """

    def __init__(
        self,
        builds: BuildStore,
        sessions: SessionStore,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        tell: Callable[[str, Mapping[str, Any]], Awaitable[Any]] = tell_hub,
        clock: Callable[[], float] = time.time,
        knows: Callable[[str, Collection[str]], bool | None] = account_exists,
        images: ImageStore | None = None,
    ) -> None:
        self._builds, self._sessions, self._log = builds, sessions, log
        self._tell, self._clock, self._knows, self._images = tell, clock, knows, images
        self._asked: dict[str, float] = {}
        self._others: set[str] = set()

    async def keep(self) -> None:
        """Write down what has ended and what is used; tell of what is over soon, and remove what is over.

        Raises:
            StoreError: the database fails.
        """
        now = self._clock()
        for each in await in_store_thread(self._builds.settle, now):
            self._log.info("Image %s of %s: %s %s", each.name, each.user, each.state.value, each.problem)
        builds = [each for each in await in_store_thread(self._builds.builds, now) if each.state is BuildState.READY]
        if not builds:
            return
        sessions = await in_store_thread(self._sessions.open_sessions, self._builds.cluster)
        users = {name: {each.user for each in some} for name, some in sessions_by_image(sessions).items()}
        self._others = {each.user for each in builds} | {each.user for each in sessions}
        self._asked = {id: at for id, at in self._asked.items() if now - at < _PAUSE}
        known = await in_store_thread(self._images.images) if self._images is not None else []
        dates = {each.name: each.retirement for each in known if each.retirement is not None}
        for build in builds:
            await self._tell_of_base(build, dates.get(build.base))
            if build.user in users.get(build.name, ()):
                if now - build.used > _USED_STEP:
                    await self._change(build, used=now, **_GONE_NO_MORE if build.problem == GONE else {})
                continue
            await self._judge(build, now)

    async def _tell_of_base(self, build: Build, date: Retirement | None) -> None:
        """Tell the user of an image once from when on nobody starts with it, since its base is retired."""
        said = base_text(build, date) if date is not None else ""
        if build.problem in (said, GONE):
            return
        if said:
            text = f"Your image {build.name}: {said}"[:1000]
            try:
                await self._tell(MESSAGES, {"to": "user", "name": build.user, "text": text, "reason": text[:200]})
            except (OSError, HTTPClientError) as error:
                if not (isinstance(error, HTTPClientError) and reaches_nobody(error)):
                    self._log.warning("%s is not told yet of the base of image %s: %s", build.user, build.name, error)
                    return
        await self._change(build, problem=said)

    async def _judge(self, build: Build, now: float) -> None:
        if is_over(build, now):
            if build.problem == GONE and not await self._is_gone(build, now):
                return
            why = f"No session used it for {build.days:.0f} days."
            await self._change(build, state=BuildState.REMOVED, ended=now, problem=why)
            self._log.info("Image %s of %s is removed: %s", build.name, build.user, why)
        elif is_to_be_told(build, now):
            if await self._is_gone(build, now):
                await self._change(build, told=now, problem=GONE)
        elif build.problem == GONE and await self._is_known(build.user):
            await self._change(build, told=0.0, **_GONE_NO_MORE)  # back again, and told as anybody else

    async def _is_gone(self, build: Build, now: float) -> bool:
        """Tell the user of an image of its end; return whether there is no such user any more."""
        if build.id in self._asked:
            return False
        self._asked[build.id] = now
        text = expiry_text(build, max(removed_at(build), now + TOLD_BEFORE * 86_400))
        try:
            await self._tell(MESSAGES, {"to": "user", "name": build.user, "text": text, "reason": text[:200]})
        except (OSError, HTTPClientError) as error:
            if isinstance(error, HTTPClientError) and reaches_nobody(error):
                known = await self._is_known(build.user)
                if known is False:
                    return True
                why = (
                    "the directory of users does not answer" if known is None else "the hub does not know its user yet"
                )
                self._log.warning("Image %s of %s stays: %s", build.name, build.user, why)
            else:
                self._log.warning("%s is not told yet of image %s: %s", build.user, build.name, error)
            return False
        await self._change(build, told=now, **_GONE_NO_MORE if build.problem == GONE else {})
        return False

    async def _is_known(self, user: str) -> bool | None:
        return await asyncio.to_thread(self._knows, user, self._others)

    async def _change(self, build: Build, **values: Any) -> None:
        await in_store_thread(lambda: self._builds.change(build.id, BuildState.READY, **values))


def base_text(build: Build, date: Retirement) -> str:
    """Return what is said of an image whose base is retired from a date on."""
    return (
        f"{build.base}, below it, is not offered from {day(datetime.fromtimestamp(date.date, UTC))} on: {date.reason} "
        "From then on nobody starts with it. Build it again on top of another image."
    )


def expiry_text(build: Build, until: float) -> str:
    """Return what the user of an image reads."""
    date = day(datetime.fromtimestamp(until, UTC))
    return (
        f"No session has used your image {build.name} for long. It is removed on {date} unless you start one with it."
    )


def reaches_nobody(error: HTTPClientError) -> bool:
    """Return whether the hub says that it knows nobody whom a message would reach."""
    try:
        said = json.loads(error.response.body) if error.response is not None else {}
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("field") == "name"
