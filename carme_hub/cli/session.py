"""``carme-hub session start | stop | list``: sessions from a terminal or a script, through the hub's REST API.

It holds no rule: what may be started is judged by the hub, as for the form, and said in the hub's words.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from traitlets import Bool, Float, Unicode

from carme_hub.errors import CarmeError, Refused

from .base import CommandGroup, UsageError, table
from .hub_client import HubClient, HubUnreachable, server_path
from .hub_command import HubTask

#: Seconds for which the hub may be silent while a start is waited for, as when it is restarted; and between two looks.
SILENCE_TIMEOUT, POLL_INTERVAL = 120.0, 1.0
_SEE_LIST = "`carme-hub session list` says how it stands"
_NUMBERS = ("gpus", "cpus", "memory_gib", "time_minutes")
#: Options of the command line that are user options of the same name.
_OPTIONS = ("profile", "gpu_type", *_NUMBERS, "image", "account", "reservation", "working_folder", "missing_folder")


class SessionTask(HubTask):
    """What the commands have in common: which hub, whose token, whose session."""

    user = Unicode("", help="Whose sessions. The default is the token's owner.").tag(config=True)
    aliases: Any = {**HubTask.aliases, "user": "SessionTask.user"}

    async def work(self) -> int:
        """Open the hub and do the task."""
        if self.extra_args and not isinstance(self, StartApp):
            raise UsageError(f"{self.extra_args[0]!r} means nothing here; --help says more")
        async with HubClient(self.address(), self.token(), self.ca) as hub:
            return await self.task(hub, self.user or await hub.user())

    async def task(self, hub: HubClient, user: str) -> int:
        """Do it for this user and return the exit status."""
        raise NotImplementedError


class _OneSession(SessionTask):
    """What is done to one session."""

    server = Unicode("", help="Name of a named server. The default is the default server.").tag(config=True)
    wait = Bool(False, help="Return when it is done, not when the hub has taken it on.").tag(config=True)
    aliases: Any = {**SessionTask.aliases, "name": "_OneSession.server"}
    flags: Any = {
        **SessionTask.flags,
        "wait": ({"_OneSession": {"wait": True}}, "Return when it is done, not when the hub has taken it on."),
    }

    async def find_server(self, hub: HubClient, user: str) -> dict[str, Any] | None:
        """Return the server as the hub describes it, None where there is none that runs, starts or stops."""
        return next((each for each in await hub.servers(user) if each["name"] == self.server), None)

    def print_result(self, user: str, state: str, url: str = "") -> int:
        """Say what became of it."""
        if self.as_json:
            self.print_json({"user": user, "name": self.server, "state": state, "url": url})
        else:
            print(f"{_server_label(user, self.server)} {_STATE_TEXTS.get(state, state)}" + (f" {url}" if url else ""))
        return 0


_STATE_TEXTS = {
    "ready": "is ready:",
    "starting": f"is starting; {_SEE_LIST}:",
    "stopping": "is stopping",
    "stopped": "has stopped",
}


class StartApp(_OneSession):
    """Start a session."""

    name = "carme-hub session start"
    description = """Start a session. The hub decides, by the same rules as for its form; a refusal is printed in its
    words. Options of a profile's own are written NAME=VALUE at the end. Exit status: 0 started (with --wait: ready), 1
    refused or failed, 2 the hub could not be request, or it is still starting when --wait-minutes are over."""
    examples = "carme-hub session start --profile a100 --gpus 2 --time-minutes 60 --name train --wait"

    profile = Unicode("", help="Slug of the profile. The default is the form's.").tag(config=True)
    gpu_type = Unicode("", help="Which GPUs, such as a100. The default is the profile's.").tag(config=True)
    gpus = Unicode("", help="How many GPUs. The default is the profile's, as for all numbers here.").tag(config=True)
    cpus = Unicode("", help="How many CPUs.").tag(config=True)
    memory_gib = Unicode("", help="How much memory, in GiB.").tag(config=True)
    time_minutes = Unicode("", help="For how long, in minutes.").tag(config=True)
    image = Unicode("", help="Name of the container image. The default is the profile's.").tag(config=True)
    account = Unicode("", help="The Slurm account that pays. The default is your default account.").tag(config=True)
    reservation = Unicode("", help="The Slurm reservation to start in.").tag(config=True)
    working_folder = Unicode("", help="The folder that JupyterLab opens. The default is your home.").tag(config=True)
    missing_folder = Unicode("", help="make: make it where it is missing. The default: refuse.").tag(config=True)
    wait_minutes = Float(
        0.0, min=0.0, help="With --wait: for how many minutes at most. The default is as long as the hub starts it."
    ).tag(config=True)
    aliases: Any = {
        **_OneSession.aliases,
        "wait-minutes": "StartApp.wait_minutes",
        **{name.replace("_", "-"): f"StartApp.{name}" for name in _OPTIONS},
    }
    flags: Any = _OneSession.flags

    async def task(self, hub: HubClient, user: str) -> int:
        """Ask for it, and wait for it where that is wanted."""
        self._printed: set[str] = set()
        try:
            return await self._start(hub, user)
        except Refused as error:
            if not (self.working_folder and "working folder" in error.message and "does not exist" in error.message):
                raise
            raise Refused(f"{error.message} --missing-folder make has it made.", reason=error.reason) from error

    async def _start(self, hub: HubClient, user: str) -> int:
        await self._request_start(hub, user)
        # What the hub has done is looked at: JupyterHub 6.1 also answers 201, "it runs", where a start is still to be
        # decided on and the one before had failed.
        found = await self.find_server(hub, user)
        if found is None or (self.wait and not found["ready"]):
            found = await self._wait_until_ready(hub, user)
        return self.print_result(user, _state(found), _url(found, hub))

    def user_options(self) -> dict[str, str | int]:
        """Return the user options; the hub says what is wrong with them."""
        found: dict[str, str | int] = {}
        for word in self.extra_args:
            name, equals, value = word.partition("=")
            if not equals or not name or name in _OPTIONS:
                raise UsageError(f"{word!r}: write options of the profile's own as NAME=VALUE, others as --name value")
            found[name] = value
        for name in _OPTIONS:
            value = getattr(self, name)
            if value:
                found[name] = int(value) if name in _NUMBERS and value.isascii() and value.isdigit() else value
        return found

    async def _request_start(self, hub: HubClient, user: str) -> None:
        """Ask for the start until the hub answers, which takes it up to ten seconds; meanwhile say how it goes."""
        body = {"user_options": self.user_options()}
        request = asyncio.ensure_future(hub.ask("POST", server_path(user, self.server), body))
        try:
            while self.wait and not (await asyncio.wait({request}, timeout=0.3))[0]:
                with contextlib.suppress(Refused):  # it is not starting yet
                    async for event in hub.events(server_path(user, self.server, "/progress")):
                        self._print_event(event)
            await self.with_progress("asking the hub", request)
        finally:
            request.cancel()

    async def _wait_until_ready(self, hub: HubClient, user: str) -> dict[str, Any]:
        """Say how the start goes, and return the server, ready where that is waited for; ``Refused`` says why not.

        That the hub says no more is no end of the start: a hub or a proxy that is restarted ends what it was sending.

        Raises:
            HubUnreachable: the hub has been silent for long. CarmeError: it still starts, and the time to wait is over.
        """
        last_answer = time.monotonic()
        try:
            async with asyncio.timeout(60 * self.wait_minutes or None):
                while True:
                    try:
                        found = await self._print_progress(hub, user)
                        last_answer = time.monotonic()
                    except HubUnreachable as error:
                        if time.monotonic() > last_answer + SILENCE_TIMEOUT:
                            raise HubUnreachable(f"{error}. It may be starting all the same: {_SEE_LIST}") from error
                    else:
                        if found["ready"] or not self.wait:
                            return found
                    await asyncio.sleep(POLL_INTERVAL)
        except TimeoutError:
            raise CarmeError(f"{_server_label(user, self.server)} is still starting; {_SEE_LIST}.") from None

    async def _print_progress(self, hub: HubClient, user: str) -> dict[str, Any]:
        """Say how the start goes as long as the hub says it; return the server, ready or not, that is there then."""
        failed = ""
        refusal = Refused("The hub no longer says how the start goes; look with `carme-hub session list`.")
        try:
            async for event in hub.events(server_path(user, self.server, "/progress")):
                if event.get("failed"):
                    failed = str(event.get("message", "")).removeprefix("Spawn failed: ") or "The start failed."
                self._print_event(event)
        except Refused as error:  # it does not start any more, or a new hub does not say yet that it does
            refusal = error
        if failed:
            raise Refused(failed, reason="start-failed")
        found = await self.find_server(hub, user)
        if found is None or not (found["ready"] or _starting(found)):
            raise refusal
        return found

    def _print_event(self, event: Mapping[str, Any]) -> None:
        """Say each thing once; the hub tells all of a start to whoever asks again."""
        message = str(event.get("message", ""))
        if message and message not in self._printed and not event.get("ready") and not event.get("failed"):
            self.note(message)
            self._printed.add(message)


class StopApp(_OneSession):
    """Stop a session."""

    name = "carme-hub session stop"
    description = "Stop a session; what it did not use of its GPU time comes back. Exit status as for start."
    examples = "carme-hub session stop --name train --wait"

    async def task(self, hub: HubClient, user: str) -> int:
        """Stop it."""
        if await self.find_server(hub, user) is None:
            raise Refused(f"{_server_label(user, self.server)} does not run.", reason="not-running")
        status, _ = await self.with_progress("stopping", hub.ask("DELETE", server_path(user, self.server)))
        state = "stopped" if status == 204 else "stopping"
        if self.wait and state == "stopping":
            await self.with_progress("stopping", self._wait_until_stopped(hub, user))
            state = "stopped"
        return self.print_result(user, state)

    async def _wait_until_stopped(self, hub: HubClient, user: str) -> None:
        while await self.find_server(hub, user) is not None:  # noqa: ASYNC110  the hub is far
            await asyncio.sleep(1.0)


class ListApp(SessionTask):
    """List sessions."""

    name = "carme-hub session list"
    description = "List the sessions that run, start or stop."
    examples = "carme-hub session list --json"

    async def task(self, hub: HubClient, user: str) -> int:
        """List them."""
        found = [
            {
                "name": each["name"],
                "state": _state(each),
                "profile": str((each.get("user_options") or {}).get("profile", "")),
                "started": each.get("started") or "",
                "url": _url(each, hub),
            }
            for each in await hub.servers(user)
        ]
        if self.as_json:
            self.print_json({"user": user, "sessions": found})
        elif not found:
            print(f"{user} has no session.")
        else:
            rows = [(each["name"] or "(default)", *list(each.values())[1:]) for each in found]
            print(table(("name", "state", "profile", "since", "address"), rows))
        return 0


class SessionApp(CommandGroup):
    """Sessions from a terminal or a script."""

    name = "carme-hub session"
    description = """Start, stop and list your sessions, from a login node, your own machine or a script. It asks the
    hub's REST API with a token of yours; nothing else of the hub need be there."""
    subcommands: Any = {
        "start": (StartApp, "Start a session"),
        "stop": (StopApp, "Stop a session"),
        "list": (ListApp, "List the sessions that run, start or stop"),
    }


def _server_label(user: str, name: str) -> str:
    return f"{user}/{name}" if name else f"{user}'s default server"


def _starting(server: Mapping[str, Any]) -> bool:
    """Return whether it may get ready; a hub that was restarted first looks ("check") what became of a session."""
    return server.get("pending") in ("spawn", "check")


def _state(server: Mapping[str, Any]) -> str:
    pending = {"spawn": "starting", "stop": "stopping"}
    return (
        "ready" if server.get("ready") else pending.get(str(server.get("pending")), str(server.get("pending") or "?"))
    )


def _url(server: Mapping[str, Any], hub: HubClient) -> str:
    """Return where a server is opened; the hub says it in full only where it knows its public address."""
    full = str(server.get("full_url") or "")
    parts = urlsplit(hub.api)
    return full or f"{parts.scheme}://{parts.netloc}{server.get('url', '')}"
