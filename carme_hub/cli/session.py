"""``carme-hub session start | stop | list``: sessions from a terminal or a script, through the hub's REST API.

It holds no rule: the hub decides what may start, as for the form, and its message is printed unchanged.
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

#: Seconds for which the hub may not answer while a start is awaited (it may be restarting), and between two requests.
SILENCE_TIMEOUT, POLL_INTERVAL = 120.0, 1.0
_SEE_LIST = "`carme-hub session list` shows its state"
_NUMBERS = ("gpus", "cpus", "memory_gib", "time_minutes", "scratch_gib")
_LINES = ("stage_in", "stage_out", "stage_mount")
#: Options of the command line that are user options of the same name.
_OPTIONS = (
    *("profile", "gpu_type", *_NUMBERS, "image", "account", "reservation", "working_folder", "missing_folder"),
    "folders",
    *_LINES,
)


class SessionTask(HubTask):
    """What the commands share: which hub, whose token, whose session."""

    user = Unicode("", help="Whose sessions. The default is the token's owner.").tag(config=True)
    aliases: Any = {**HubTask.aliases, "user": "SessionTask.user"}

    async def work(self) -> int:
        """Open the hub and do the task."""
        if self.extra_args and not isinstance(self, StartApp):
            raise UsageError(f"{self.extra_args[0]!r} is not an argument of this command; see --help")
        async with HubClient(self.address(), self.token(), self.ca) as hub:
            return await self.task(hub, self.user or await hub.user())

    async def task(self, hub: HubClient, user: str) -> int:
        """Do the task for this user and return the exit status."""
        raise NotImplementedError


class _OneSession(SessionTask):
    """A command about one session."""

    server = Unicode("", help="Name of a named server. The default is the default server.").tag(config=True)
    wait = Bool(False, help="Return when it is done, not when the hub has accepted it.").tag(config=True)
    aliases: Any = {**SessionTask.aliases, "name": "_OneSession.server"}
    flags: Any = {
        **SessionTask.flags,
        "wait": ({"_OneSession": {"wait": True}}, "Return when it is done, not when the hub has accepted it."),
    }

    async def find_server(self, hub: HubClient, user: str) -> dict[str, Any] | None:
        """Return the server as the hub describes it, None where there is none that runs, starts or stops."""
        return next((each for each in await hub.servers(user) if each["name"] == self.server), None)

    def print_result(self, user: str, state: str, url: str = "") -> int:
        """Print the session's state and address."""
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
    words. Write a profile's own options as NAME=VALUE at the end. Exit status: 0 started (with --wait: ready), 1
    refused or failed, 2 the hub did not answer, or the session still starts when --wait-minutes are over."""
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
    folders = Unicode("", help="Shared folders, such as genomes:ro,results:rw.").tag(config=True)
    stage_in = Unicode(
        "", help="Data for the node: 'SOURCE -> NAME', several separated by semicolons; S3 by your rclone."
    ).tag(config=True)
    stage_out = Unicode("", help="Results to save whatever ends it: 'NAME -> TARGET', several as for in.").tag(
        config=True
    )
    stage_mount = Unicode("", help="Object storage as folders /objects/NAME: 'REMOTE:PATH -> NAME', as for in.").tag(
        config=True
    )
    scratch_gib = Unicode("", help="How much scratch on the node, in GiB. The default is the site's.").tag(config=True)
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
        """Start it, and wait for it with ``--wait``."""
        self._printed: set[str] = set()
        try:
            return await self._start(hub, user)
        except Refused as error:
            if not (self.working_folder and "working folder" in error.message and "does not exist" in error.message):
                raise
            raise Refused(f"{error.message} --missing-folder make creates it.", reason=error.reason) from error

    async def _start(self, hub: HubClient, user: str) -> int:
        await self._request_start(hub, user)
        # The answer alone is not enough: JupyterHub 6.1 also answers 201, "it runs", where the start is not decided yet
        # and the one before had failed.
        found = await self.find_server(hub, user)
        if found is None or (self.wait and not found["ready"]):
            found = await self._wait_until_ready(hub, user)
        return self.print_result(user, _state(found), _url(found, hub))

    def user_options(self) -> dict[str, str | int]:
        """Return the user options; the hub checks them."""
        found: dict[str, str | int] = {}
        for word in self.extra_args:
            name, equals, value = word.partition("=")
            if not equals or not name or name in _OPTIONS:
                raise UsageError(f"{word!r}: write the profile's own options as NAME=VALUE, others as --name value")
            found[name] = value
        for name in _OPTIONS:
            value = getattr(self, name)
            if value:
                value = value.replace(";", "\n") if name in _LINES else value
                found[name] = int(value) if name in _NUMBERS and value.isascii() and value.isdigit() else value
        return found

    async def _request_start(self, hub: HubClient, user: str) -> None:
        """Send the request; the hub takes up to ten seconds to answer. Print the start's progress meanwhile."""
        body = {"user_options": self.user_options()}
        request = asyncio.ensure_future(hub.request("POST", server_path(user, self.server), body))
        try:
            while self.wait and not (await asyncio.wait({request}, timeout=0.3))[0]:
                with contextlib.suppress(Refused):  # it is not starting yet
                    async for event in hub.events(server_path(user, self.server, "/progress")):
                        self._print_event(event)
            await self.with_progress("asking the hub", request)
        finally:
            request.cancel()

    async def _wait_until_ready(self, hub: HubClient, user: str) -> dict[str, Any]:
        """Print the start's progress, and return the server, with ``--wait`` when it is ready.

        The end of the hub's stream is not the end of the start: a restart of the hub or the proxy ends the stream, too.

        Raises:
            Refused: the start failed. HubUnreachable: the hub has not answered for long.
            CarmeError: it still starts, and the time to wait is over.
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
                            raise HubUnreachable(f"{error}. It may be starting nevertheless: {_SEE_LIST}") from error
                    else:
                        if found["ready"] or not self.wait:
                            return found
                    await asyncio.sleep(POLL_INTERVAL)
        except TimeoutError:
            raise CarmeError(f"{_server_label(user, self.server)} is still starting; {_SEE_LIST}.") from None

    async def _print_progress(self, hub: HubClient, user: str) -> dict[str, Any]:
        """Print the start's progress until the hub ends the stream; return the server as it is then, ready or not."""
        failed = ""
        refusal = Refused("The hub no longer reports the progress of the start; see `carme-hub session list`.")
        try:
            async for event in hub.events(server_path(user, self.server, "/progress")):
                if event.get("failed"):
                    failed = str(event.get("message", "")).removeprefix("Spawn failed: ") or "The start failed."
                self._print_event(event)
        except Refused as error:  # the start has ended, or a hub that was restarted does not know of it yet
            refusal = error
        if failed:
            raise Refused(failed, reason="start-failed")
        found = await self.find_server(hub, user)
        if found is None or not (found["ready"] or _starting(found)):
            raise refusal
        return found

    def _print_event(self, event: Mapping[str, Any]) -> None:
        """Print each message once; the hub sends all events of a start again with each request."""
        message = str(event.get("message", ""))
        if message and message not in self._printed and not event.get("ready") and not event.get("failed"):
            self.note(message)
            self._printed.add(message)


class StopApp(_OneSession):
    """Stop a session."""

    name = "carme-hub session stop"
    description = "Stop a session; the GPU time that it did not use comes back. Exit status as for start."
    examples = "carme-hub session stop --name train --wait"

    async def task(self, hub: HubClient, user: str) -> int:
        """Stop it."""
        if await self.find_server(hub, user) is None:
            raise Refused(f"{_server_label(user, self.server)} does not run.", reason="not-running")
        status, _ = await self.with_progress("stopping", hub.request("DELETE", server_path(user, self.server)))
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
    description = """Start, stop and list your sessions, from a login node, your own machine or a script. It uses the
    hub's REST API with one of your tokens, and needs nothing else of the hub."""
    subcommands: Any = {
        "start": (StartApp, "Start a session"),
        "stop": (StopApp, "Stop a session"),
        "list": (ListApp, "List the sessions that run, start or stop"),
    }


def _server_label(user: str, name: str) -> str:
    return f"{user}/{name}" if name else f"{user}'s default server"


def _starting(server: Mapping[str, Any]) -> bool:
    """Return whether it may become ready; after a restart the hub first checks ("check") each session."""
    return server.get("pending") in ("spawn", "check")


def _state(server: Mapping[str, Any]) -> str:
    pending = {"spawn": "starting", "stop": "stopping"}
    return (
        "ready" if server.get("ready") else pending.get(str(server.get("pending")), str(server.get("pending") or "?"))
    )


def _url(server: Mapping[str, Any], hub: HubClient) -> str:
    """Return a server's address; the hub gives it in full only where it knows its public address."""
    full = str(server.get("full_url") or "")
    parts = urlsplit(hub.api)
    return full or f"{parts.scheme}://{parts.netloc}{server.get('url', '')}"
