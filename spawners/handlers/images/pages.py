"""Pages of images that the visitor builds: ``/hub/carme/images/builds`` lists them and has the form; each has a page.

The page of a build has its log, read as the visitor, and follows it while the job runs. Removing asks first.
``/hub/carme/images/start`` leads to the form with an image filled in.
"""

from __future__ import annotations

import re
import secrets
import time
from datetime import UTC, datetime
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub.containers.registry import cannot_build
from carme_hub.domain.images.builds import Build, BuildState
from carme_hub.domain.wording import day
from carme_hub.errors import Refused, SlurmError, StoreError
from carme_hub.spawners.companions.image_builds import (
    Asked,
    as_json,
    build_of,
    builds_of,
    limits_of,
    open_build,
    remove_build,
)
from carme_hub.spawners.companions.outside import origin_of
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.images.rest import WAITS, answer_log, log_of, start_path
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.output import TAIL, NoOutput, Outputs

_UUID = "[0-9a-f-]{36}"
BUILDS, START = r"/carme/images/builds", r"/carme/images/start"
ONE, LOG, REMOVE = rf"{BUILDS}/({_UUID})", rf"{BUILDS}/({_UUID})/log", rf"{BUILDS}/({_UUID})/remove"
_SILENT = "The database or Slurm does not answer. Look at the list before you try again."
_FIELDS = ("name", "image", "profile", "text", "kind", "description", "minutes")
_STATES = {BuildState.BUILDING: "is being built", BuildState.READY: "ready", BuildState.FAILED: "not built"}


class BuildPage(BaseHandler):
    """What the pages have in common."""

    @property
    def _hub(self) -> HubContext:
        hub = started_hub()
        if hub is None or hub.images is None:
            raise web.HTTPError(404, "This hub keeps no catalogue of images, or is starting.")
        self.set_header("Cache-Control", "no-store")
        return hub

    async def _one(self, hub: HubContext, id: str) -> Build:
        try:
            return await build_of(hub, self.current_user.name, id)
        except Refused as error:
            raise web.HTTPError(404, error.message) from error
        except StoreError as error:
            raise web.HTTPError(503, _SILENT) from error

    def _shown(self, hub: HubContext, build: Build) -> dict[str, Any]:
        said = as_json(hub, build)
        until = datetime.fromtimestamp(int(str(said["until"])), UTC)
        said |= {"state_words": _STATES.get(build.state, build.state.value), "live": build.state is BuildState.BUILDING}
        said |= {"ready": build.state is BuildState.READY, "until_day": day(until) if said["until"] else ""}
        said["start"] = start_path(self.current_user, build.name, named=self.allow_named_servers)
        return {**said, "begun": clock(build.created, time.time())}


class BuildsPage(BuildPage):
    """The list, and the form."""

    @web.authenticated
    async def get(self) -> None:
        """Show them, and the form, filled in with another build of theirs where ``again`` names it."""
        hub, again = self._hub, self.get_argument("again", "")
        sent: dict[str, str] = {}
        if re.fullmatch(_UUID, again):
            build = await self._one(hub, again)
            sent = {"name": build.name, "image": build.base, "text": build.text, "description": build.description}
            sent["kind"] = "requirements" if build.kind == "packages" else build.kind
        await self._show(hub, sent)

    @web.authenticated
    async def post(self) -> None:
        """Build an image, and go to its page; a refusal is shown above the form as it was sent."""
        await self._post(user_name=self.current_user.name)

    @needs_scope("start:servers")
    async def _post(self, user_name: str) -> None:  # noqa: ARG002  the scope's
        hub, user = self._hub, self.current_user
        sent = {name: self.get_body_argument(name, "", strip=name != "text")[: 64 << 10] for name in _FIELDS}
        try:
            options = {name: sent[name] for name in ("image", "profile") if sent[name]}
            origin = await origin_of(hub, user.spawner, options)
            minutes = int(sent["minutes"]) if sent["minutes"].isdigit() and len(sent["minutes"]) < 6 else 0
            asked = Asked(sent["name"], sent["kind"] or "requirements", sent["text"], minutes, sent["description"])
            key = self.get_body_argument("key", "")[:100]
            build, _ = await open_build(hub, user.spawner, origin, asked, key)
        except Refused as error:
            self.set_status(409)
            await self._show(hub, sent, error.message)
            return
        except (SlurmError, StoreError) as error:
            hub.log.warning("An image of %s is perhaps not built: %s", user.name, error)
            self.set_status(503)
            await self._show(hub, sent, _SILENT)
            return
        self.redirect(url_path_join(self.hub.base_url, "carme/images/builds", build.id), status=303)

    async def _show(self, hub: HubContext, sent: dict[str, str], refused: str = "") -> None:
        user, limits = self.current_user, limits_of(hub, self.current_user)
        try:
            builds = await builds_of(hub, user.name)
            offer = await user.spawner.offer()
        except (StoreError, Refused) as error:
            raise web.HTTPError(503, str(error)) from error
        values = {
            "builds": [self._shown(hub, each) for each in builds],
            "images": dict(offer.images),
            "impossible": cannot_build(user.spawner.site().runtime),
            "profiles": {each.slug: each.display_name for each in offer.profiles},
            "limits": limits,
            "channels": list(hub.images.settings.build_channels) if hub.images is not None else [],
            "sent": sent,
            "refused": refused,
            "key": secrets.token_urlsafe(16),
        }
        self.finish(await self.render_template("carme_image_builds.html", **values))


class OnePage(BuildPage):
    """One image: what it is, and its log."""

    @web.authenticated
    async def get(self, id: str) -> None:
        """Show it."""
        hub = self._hub
        build = await self._one(hub, id)
        values: dict[str, Any] = {"build": self._shown(hub, build)}
        try:
            place = log_of(self.current_user, id)
            values["part"] = await Outputs().part(hub, self.current_user.name, place, offset=-TAIL)
        except NoOutput as error:
            waits = build.state is BuildState.BUILDING and error.reason == "missing"
            values["why"], values["waits"] = (WAITS if waits else error.message), waits
        except SlurmError as error:
            hub.log.warning("The log of build %s of %s is not read: %s", id, build.user, error)
            values["why"] = "The log is not read now. Try it again in a minute."
        self.finish(await self.render_template("carme_image_build.html", **values))


class LogPage(BuildPage):
    """What the log has from an offset on: for the page's script."""

    async def get(self, id: str) -> None:
        """Send it as JSON."""
        if self.current_user is None:
            raise web.HTTPError(403)
        try:
            await answer_log(self, self._hub, self.current_user, id)
        except Refused as error:
            raise web.HTTPError(404, error.message) from error


class RemovePage(BuildPage):
    """The question whether an image is removed, and the form that does it."""

    @web.authenticated
    async def get(self, id: str) -> None:
        """Ask; nothing is changed."""
        hub = self._hub
        await self._ask(hub, await self._one(hub, id))

    @web.authenticated
    async def post(self, id: str) -> None:
        """Remove it."""
        hub = self._hub
        build = await self._one(hub, id)
        try:
            await remove_build(hub, self.current_user.name, id)
        except Refused as error:
            self.set_status(409)
            await self._ask(hub, build, error.message)
        except (SlurmError, StoreError) as error:
            hub.log.warning("Image %s of %s is perhaps not removed: %s", id, build.user, error)
            self.set_status(503)
            await self._ask(hub, build, _SILENT)
        else:
            self.redirect(url_path_join(self.hub.base_url, "carme/images/builds"), status=303)

    async def _ask(self, hub: HubContext, build: Build, refused: str = "") -> None:
        values = {"build": self._shown(hub, build), "refused": refused}
        self.finish(await self.render_template("carme_image_remove.html", **values))


class StartPage(BuildPage):
    """The way from the catalogue to a form with an image filled in, also while the visitor's server runs."""

    @web.authenticated
    async def get(self) -> None:
        """Lead there; where there is no such form, to the visitor's page, which has the server to be stopped."""
        image, profile = (self.get_argument(name, "")[:64] for name in ("opt-image", "opt-profile"))
        path = start_path(self.current_user, image, named=self.allow_named_servers, profile=profile)
        self.redirect(f"{self.hub.base_url}{path or 'home'}", status=303)


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (BUILDS, BuildsPage),
    (ONE, OnePage),
    (LOG, LogPage),
    (REMOVE, RemovePage),
    (START, StartPage),
]
