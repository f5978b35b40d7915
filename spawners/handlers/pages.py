"""Carme Hub's pages of the hub: a GET never starts a server, and batchspawner's callback is not reachable.

``install_handlers`` puts these handlers before the hub's own. In JupyterHub 6.1.1 three requests start a server:
``POST /hub/spawn…``, ``POST /hub/api/users/…/server…``, and ``GET /hub/spawn…`` (with options in the URL, or without a
form); every other GET (``/user/…``, ``/hub/user-redirect``, ``implicit_spawn_seconds``) redirects there. The handler
here shows the form instead. A spawner class with ``async def offer(self) -> Offer`` gets Carme Hub's form with problems
at their fields; any other class gets its own form, or an empty form with a start button.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jupyterhub.apihandlers
import jupyterhub.handlers
from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.spawner import SpawnException
from jupyterhub.user import User
from jupyterhub.utils import maybe_future, url_path_join
from tornado import web
from tornado.httputil import url_concat

from carme_hub.domain.sessions.profile_choice import Problem
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import CarmeError, Refused
from carme_hub.paths import share_folder
from carme_hub.spawners.console.inbox import announced
from carme_hub.spawners.form.cost import NOT_KNOWN, Cost, RemainingBudget
from carme_hub.spawners.form.form import Offer, live_answer, render_form, shown_request, without_impossible_suggestion
from carme_hub.spawners.form.last_use import last_use
from carme_hub.spawners.form.options import options_from_form, options_from_query
from carme_hub.spawners.form.slot_cards import slots_html
from carme_hub.spawners.handlers.batch_jobs import HANDLERS as BATCH_JOBS
from carme_hub.spawners.handlers.companions import HANDLERS as COMPANIONS
from carme_hub.spawners.handlers.console.routes import HANDLERS as CONSOLE
from carme_hub.spawners.handlers.disk import HANDLERS as DISK
from carme_hub.spawners.handlers.extend import EXTEND, ExtendHandler
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.handlers.home.sessions import HANDLERS as SESSIONS
from carme_hub.spawners.handlers.idle_evidence import HANDLERS as IDLE_EVIDENCE
from carme_hub.spawners.handlers.images.routes import HANDLERS as IMAGE_BUILDS
from carme_hub.spawners.handlers.jobs.acts import HANDLERS as ACTS
from carme_hub.spawners.handlers.jobs.again import HANDLERS as AGAIN
from carme_hub.spawners.handlers.jobs.one import HANDLERS as ONE_JOB
from carme_hub.spawners.handlers.jobs.output import HANDLERS as OUTPUT
from carme_hub.spawners.handlers.jobs.rest import HANDLERS as JOBS_REST
from carme_hub.spawners.handlers.maintenance import API, FORM, MaintenanceFormHandler, MaintenanceHandler
from carme_hub.spawners.handlers.notices import notices_for
from carme_hub.spawners.handlers.own_session import HANDLERS as OWN_SESSION
from carme_hub.spawners.handlers.runs import HANDLERS as RUNS
from carme_hub.spawners.handlers.scaling_curves import SCALING, ScalingHandler, curves_of
from carme_hub.spawners.handlers.slurm import HANDLERS as SLURM
from carme_hub.spawners.handlers.staging import HANDLERS as STAGING
from carme_hub.spawners.hub.finished_jobs import finished_of
from carme_hub.spawners.hub.shared import started_hub
from carme_hub.spawners.hub.start_queue import HANDLERS as SERVERS
from carme_hub.spawners.hub.start_queue import QueuedHandler, answer_requests_first, failing_start, queue_starts

log = logging.getLogger(__name__)

#: batchspawner's ``POST /hub/api/batchspawner``, which sets any attribute of a spawner (RELIABILITY, rule 9).
BATCHSPAWNER = r"/api/batchspawner.*"


def templates_path() -> str:
    """Return the folder for ``c.JupyterHub.template_paths``."""
    return str(share_folder() / "templates")


class CarmeSpawnHandler(QueuedHandler, SpawnHandler):
    """The spawn page: GET shows the form, POST starts the server."""

    def queued(self) -> bool:
        """Return whether this request starts a server."""
        return self.request.method == "POST"

    @needs_scope("servers")
    async def _get(self, user_name: str, server_name: str, display_name: str) -> None:
        user = self._user(user_name)
        if server_name:
            await self._check_named_server_request(user, server_name, display_name)
        spawner = self._spawner(user, server_name)
        if server_name in user.orm_spawners and self._redirected(user, server_name, spawner):
            return
        # Form hooks of other spawner classes read the request from this attribute.
        spawner.handler = self
        await spawner.run_auth_state_hook(await user.get_auth_state())
        query = {
            key[4:]: [value.decode("utf8", "replace") for value in values]
            for key, values in self.request.query_arguments.items()
            if key.startswith("opt-")
        }
        options: Mapping[str, object] | None = None
        problems: Sequence[Problem] = ()
        if query:
            try:
                options = options_from_query(query)
            except Refused as e:
                problems = (Problem("", e.message),)
        html = await self._page(user, server_name, spawner, options=options, problems=problems, from_link=bool(query))
        self.finish(html)

    @needs_scope("servers")
    async def _post(self, user_name: str, server_name: str, display_name: str) -> None:
        user = self._user(user_name)
        if server_name:
            await self._check_named_server_request(user, server_name, display_name)
        spawner = self._spawner(user, server_name)
        if server_name in user.orm_spawners and self._redirected(user, server_name, spawner):
            return  # a second click on "Start"
        form_data: dict[str, Any] = {
            key: [value.decode("utf8", "replace") for value in values]
            for key, values in self.request.body_arguments.items()
            if key != "_xsrf"
        }
        form_data |= {f"{key}_file": files for key, files in self.request.files.items()}
        options: Mapping[str, object] | None = None
        problems: Sequence[Problem] = ()
        try:
            if _offers(spawner):
                options = options_from_form(form_data)
                request, problems = (await spawner.offer()).examine(options)
                if request is None:
                    raise Refused("")
            # Only valid options may create the server, and be stored as the last choice.
            spawner = user.get_or_create_spawner(server_name, display_name, replace_failed=True)
            if not _offers(spawner):
                options = await self._options_of(spawner, form_data)
            if server_name in user.orm_spawners and self._redirected(user, server_name, spawner):
                return  # two clicks at once: the other request came first
            pending_url = self._get_pending_url(user, server_name)
            await self._wrap_spawn_single_user(user, server_name, display_name, spawner, pending_url, options)
        except (Refused, web.HTTPError) as e:
            self.set_status(e.status_code if isinstance(e, web.HTTPError) else 400)
            for name, value in (getattr(e, "headers", None) or {}).items():
                self.set_header(name, value)
            missing = getattr(spawner, "folder_offer", None)
            field = "working_folder" if missing and missing["said"] in _message(e) else ""
            problems = problems or (Problem(field, _message(e)),)
            self.log.warning("No server for %s: %s", user.name, "; ".join(p.message for p in problems))
            html = await self._page(user, server_name, spawner, options=options, problems=problems)
            self.finish(html)

    async def _options_of(self, spawner: Any, form_data: dict[str, Any]) -> Any:
        """Let a spawner class with its own form read the options; the form shows any error."""
        try:
            return await maybe_future(spawner.run_options_from_form(form_data))
        except web.HTTPError:
            raise
        except Exception as e:
            raise Refused(str(e)) from e

    def _user(self, name: str) -> Any:
        user = self.current_user if name == self.current_user.name else self.find_user(name)
        if user is None:
            raise web.HTTPError(404, f"No such user: {name}")
        return user

    def _spawner(self, user: Any, server_name: str) -> Any:
        """Return the server's spawner; the default server's if this server does not exist, so as to create nothing."""
        return user.spawners[server_name] if server_name in user.orm_spawners else user.spawner

    def _redirected(self, user: Any, server_name: str, spawner: Any) -> bool:
        """Redirect to a server that is active already; return whether it is."""
        if spawner.ready:
            self.redirect(self.get_next_url(user, default=user.server_url(server_name)), status=303)
        elif spawner.active:
            self.redirect(self._get_pending_url(user, server_name), status=303)
        else:
            return False
        return True

    async def _page(
        self,
        user: Any,
        server_name: str,
        spawner: Any,
        *,
        options: Mapping[str, object] | None,
        problems: Sequence[Problem],
        from_link: bool = False,
    ) -> str:
        here = self.request.path
        names = ("next", "display_name")
        kept = {name: value for name in names if (value := self.get_query_argument(name, ""))}
        url, booked = url_concat(here, kept), None
        # An administrator who starts a server for a user does not see that user's curves, jobs and notices.
        own = user is self.current_user
        if _offers(spawner):
            offer: Offer = await spawner.offer()
            if from_link and options is not None:
                problems = offer.examine(options)[1]
            last = spawner.orm_spawner.user_options
            cost, left = await cost_of(spawner, offer, options, last)
            finished = await finished_of(user.name, time.time()) if own else []
            form = render_form(
                replace(offer, left=left, curves=await curves_of(user.name) if own else ()),
                options=options,
                last=last,
                cost=cost,
                last_use=last_use(offer, options, last, finished, here),
                problems=problems,
                from_link=from_link,
                live_url=url_path_join(self.hub.base_url, "api/carme/availability", user.escaped_name),
                here_url=here,
            )
            booked = slots_html(offer, url=url, xsrf=self.xsrf_token.decode()) if offer.bookings is not None else None
            message = ""
        else:
            form = await spawner.get_options_form() or ""
            message = " ".join(p.message for p in problems)
            if from_link:
                message = "The options of this link cannot be filled in here. Nothing has been started."
        missing = getattr(spawner, "folder_offer", None)
        messages = [getattr(spawner, "last_end", ""), *(problem.message for problem in problems)]
        html: str = await self.render_template(
            "spawn.html",
            folder_offer=missing if missing and any(missing["said"] in each for each in messages) else None,
            for_user=user,
            auth_state=await user.get_auth_state(),
            spawner_options_form=form,
            slots_html=booked,
            error_message=message,
            html_error_message="",
            url=url,
            spawner=spawner,
            server_name=server_name,
            nothing_offered=_offers(spawner) and not offer.profiles,
            gpu_time=await notices_for(self) if own else None,
            announced=announced(started_hub(), time.time()),
        )
        return html


class AvailabilityHandler(APIHandler):
    """``GET /hub/api/carme/availability[/user]?gpus=…``: the form's sentences, for users who may start servers."""

    async def get(self, user_name: str | None = None) -> None:
        if self.current_user is None:
            raise web.HTTPError(403)
        await self._answer(user_name=user_name or self.current_user.name)

    @needs_scope("start:servers")
    async def _answer(self, user_name: str) -> None:
        user = self.find_user(user_name)
        if user is None or not _offers(user.spawner):
            raise web.HTTPError(404)
        query = {
            key: [value.decode("utf8", "replace") for value in values]
            for key, values in self.request.query_arguments.items()
            if key != "_xsrf"
        }
        try:
            options = options_from_query(query)
        except Refused as e:
            raise web.HTTPError(400, e.message) from e
        self.set_header("Cache-Control", "no-store")
        offer = await user.spawner.offer()
        answer = live_answer(offer, options, time.time())
        cost, left = await cost_of(user.spawner, offer, options)
        answer["cost"] = cost.as_json() if cost is not None else None
        answer["accounts"] = {account: each.as_json() for account, each in left.items()}
        if offer.bookings is not None:
            answer["slots"] = slots_html(offer)
        self.finish(json.dumps(answer))


class NotFoundHandler(web.RequestHandler):
    """Answers 404 to every request, before authentication."""

    def prepare(self) -> None:
        log.warning("Refused %s %s from %s", self.request.method, self.request.path, self.request.remote_ip)
        raise web.HTTPError(404)

    def check_xsrf_cookie(self) -> None:
        """Skip the XSRF check, for which tornado would answer 403 before ``prepare``."""

    def write_error(self, status_code: int, **_kwargs: Any) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"status": status_code, "message": "Not found"}))


class StaticHandler(CacheControlStaticFilesHandler):
    """Carme Hub's style sheets and scripts; that folder has nothing else."""

    def initialize(self) -> None:
        super().initialize(path=str(share_folder() / "static"))

    def set_extra_headers(self, path: str) -> None:
        super().set_extra_headers(path)
        self.set_header("X-Content-Type-Options", "nosniff")


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (BATCHSPAWNER, NotFoundHandler),
    (r"/home", CarmeHomeHandler),
    (r"/spawn", CarmeSpawnHandler),
    (r"/spawn/([^/]+)", CarmeSpawnHandler),
    (r"/spawn/([^/]+)/([^/]+)", CarmeSpawnHandler),
    (r"/api/carme/availability(?:/([^/]+))?", AvailabilityHandler),
    (EXTEND, ExtendHandler),
    *(*COMPANIONS, *BATCH_JOBS, *IMAGE_BUILDS),
    *(*RUNS, *DISK, *STAGING, *SESSIONS, *OWN_SESSION),
    *(*ACTS, *ONE_JOB, *OUTPUT, *AGAIN, *JOBS_REST),
    *CONSOLE,
    *IDLE_EVIDENCE,
    (SCALING, ScalingHandler),
    *(*SLURM, *SERVERS),
    (API, MaintenanceHandler),
    (FORM, MaintenanceFormHandler),
    (r"/carme/static/([a-z0-9_-]+\.(?:js|css))", StaticHandler),
]


def refuse_twice(handler: type[Any]) -> None:
    """Refuse a second start of a server that is starting with 400; JupyterHub 6.1 answers 500.

    JupyterHub also answers 500, without a reason, if a start fails within ``slow_spawn_timeout`` and its rest takes
    longer to end; this handler waits for that, and sends the reason.
    """
    start = handler.spawn_single_user
    if getattr(start, "refuses_twice", False):
        return

    @functools.wraps(start)
    async def spawn_single_user(self: Any, user: Any, server_name: str = "", *args: Any, **more: Any) -> Any:
        try:
            return await start(self, user, server_name, *args, **more)
        except asyncio.InvalidStateError:
            failing = failing_start(user.spawners[server_name]) if server_name in user.spawners else None
            if failing is None:
                raise
            await asyncio.shield(failing)
        except RuntimeError as error:
            pending = user.spawners[server_name].pending if server_name in user.spawners else None
            if pending is None:
                raise
            raise web.HTTPError(400, f"This server is already pending {pending}. Wait for it.") from error

    setattr(spawn_single_user, "refuses_twice", True)  # noqa: B010
    setattr(handler, "spawn_single_user", spawn_single_user)  # noqa: B010


def install_handlers() -> None:
    """Put these handlers before all of the hub's own; repeated calls have the same result.

    ``init_handlers`` of JupyterHub 6.1.1 lists the authenticator's handlers, then these, then the API's (to which an
    import of batchspawner adds its own), then ``extra_handlers``; the first match answers.
    """
    refuse_twice(BaseHandler)
    queue_starts(User)
    answer_requests_first(BaseHandler)
    first = jupyterhub.handlers.default_handlers
    first[:] = [*HANDLERS, *(h for h in first if tuple(h) not in HANDLERS)]
    for handlers in (first, jupyterhub.apihandlers.default_handlers):
        handlers[:] = [h for h in handlers if not h[0].startswith("/api/batchspawner") or tuple(h) in HANDLERS]


def _offers(spawner: Any) -> bool:
    """Return whether Carme Hub's form is shown: the class has an offer, and the site has not set ``options_form``."""
    offer: Callable[[], Awaitable[Offer]] | None = getattr(spawner, "offer", None)
    ours = getattr(type(spawner), "_render_offer", None)
    return callable(offer) and (ours is None or spawner.options_form == ours)


async def cost_of(
    spawner: Any, offer: Offer, options: Mapping[str, object] | None, last: Mapping[str, object] | None = None
) -> tuple[Cost | None, Mapping[str, RemainingBudget]]:
    """Return the cost of the form's choice, and the rest of each account; None and {} without quotas."""
    ask: Callable[[Request | None], Awaitable[tuple[Cost | None, Mapping[str, RemainingBudget]]]] | None
    ask = getattr(spawner, "cost", None)
    if ask is None:
        return None, {}
    try:
        cost, left = await ask(shown_request(offer, options, last))
    except CarmeError as error:
        log.warning("The cost of a choice is not known now: %s", error)
        return None, dict.fromkeys(offer.accounts or (), NOT_KNOWN)
    return (without_impossible_suggestion(offer, cost, options, last) if cost is not None else None), left


def _message(error: Refused | web.HTTPError) -> str:
    """Return an error's message for people."""
    if isinstance(error, Refused | SpawnException):
        return str(error.message)
    if message := getattr(error, "jupyterhub_message", ""):
        return str(message)
    return str(error.log_message or error.reason or f"Error {error.status_code}")
