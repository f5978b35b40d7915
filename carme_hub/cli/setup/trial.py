"""The doctor, and one real session on each partition, as its user would start it: by the hub's REST API.

The sessions are those of ``carme-hub session start`` and ``stop``, with their messages. What each cost is measured: the
seconds from the request until the server answers, and from the request to stop until it is gone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme_hub.cli.hub_client import HubClient, server_path
from carme_hub.cli.session import StartApp, StopApp
from carme_hub.errors import CarmeError, Refused
from carme_hub.slurm.command import Answer, Commands

from .offers import smallest_session

#: The name of the test sessions; minutes that one may wait in the queue.
SERVER, WAIT_MINUTES = "carme-setup", 5.0
#: Seconds: both import JupyterHub, and the doctor asks Slurm.
_LIMIT = 180.0


@dataclass(frozen=True, slots=True)
class Result:
    """One test session.

    Attributes:
        ready, gone: seconds of its start and of its end. why: why it failed, "" if it did not.
    """

    partition: str
    ready: float = 0.0
    gone: float = 0.0
    why: str = ""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The result as a row of a table."""
        if self.why:
            return self.partition, "failed", "", self.why
        return self.partition, f"{self.ready:.1f}", f"{self.gone:.1f}", ""


class AsHub:
    """Runs our own programs as the hub's user, with its configuration.

    Args:
        user: "" = the user who runs setup. path: PATH for them.
        secrets: file with the hub's further variables, which need not be there.
    """

    def __init__(self, commands: Commands, config: Path, user: str, path: str, secrets: Path) -> None:
        self._commands, self._config, self._user = commands, config, user
        self._environment = {**commands.environment(), **variables(secrets), "PATH": path}

    async def doctor(self) -> Answer:
        """Return what the doctor says of the configuration; its exit status is the doctor's."""
        return await self._run("-m", "carme_hub.cli", "doctor", "--config", str(self._config))

    async def token(self, user: str) -> str:
        """Return a token of a user for test sessions."""
        answer = await self._run("-m", "carme_hub.cli.setup.trial_token", str(self._config), user)
        words = answer.out.split()
        if answer.code != 0 or len(words) != 1:
            raise CarmeError(f"The hub's database gave no token for {user}: {answer.err.strip()[-500:]}")
        return words[0]

    async def _run(self, *words: str) -> Answer:
        argv = [sys.executable, *words]
        return await self._commands.run(argv, environ=self._environment, user=self._user, timeout=_LIMIT)


def variables(file: Path) -> dict[str, str]:
    """Return the variables that a unit gets by ``EnvironmentFile=``: lines ``NAME=value``, in quotes or not."""
    found = {}
    for line in file.read_text("utf-8", "replace").splitlines() if file.is_file() else ():
        name, is_one, value = (part.strip() for part in line.partition("="))
        if is_one and not name.startswith(("#", ";")):
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name] = value[1:-1] if quoted else value
    return found


async def try_each(
    url: str, token: str, user: str, profiles: Sequence[Mapping[str, Any]], note: Callable[[str], None]
) -> list[Result]:
    """Start and stop one session of each profile, one after the other; a failure does not end the others.

    Args:
        url: the hub's. note: shows a line of progress.
    """
    results = []
    async with HubClient(url, token) as hub:
        for profile in profiles:
            note(f"Starting a session on {profile['partition']} as {user}")
            results.append(await _try(hub, user, profile))
        await _revoke(hub, user)
    return results


async def _try(hub: HubClient, user: str, profile: Mapping[str, Any]) -> Result:
    options = {name: str(value) for name, value in smallest_session(profile).items()}
    name, began, why, ready = str(profile["partition"]), time.monotonic(), "", 0.0
    try:
        await StartApp(server=SERVER, wait=True, wait_minutes=WAIT_MINUTES, **options).task(hub, user)
        ready = time.monotonic() - began
    except CarmeError as error:
        why = str(error)
    ending = time.monotonic()
    try:
        await StopApp(server=SERVER, wait=True).task(hub, user)
    except Refused as error:
        if error.reason != "not-running":
            why = why or f"It does not end: {error.message}"
    except CarmeError as error:
        why = why or f"It does not end: {error}"
    gone = time.monotonic() - ending
    with contextlib.suppress(CarmeError):  # only a name in a list, of a server that does not run
        await hub.request("DELETE", server_path(user, SERVER), {"remove": True})
    return Result(name, ready, gone, why)


async def _revoke(hub: HubClient, user: str) -> None:
    """Revoke the token; it would end by itself, too."""
    with contextlib.suppress(CarmeError):
        _, found = await hub.request("GET", "/user")
        if isinstance(found, dict) and found.get("token_id"):
            await hub.request("DELETE", f"/users/{user}/tokens/{found['token_id']}")
