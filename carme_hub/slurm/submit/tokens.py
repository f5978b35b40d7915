"""Short-lived Slurm tokens, one per user, fetched once and used until a minute before their end.

The hub holds no key: ``token_command`` does, decides for whom it mints a token, and prints it. Tokens stay in this
process's memory; they are never in an argv, a log line or a message.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.command import Commands

_TOKEN = re.compile(r"(?:SLURM_JWT=)?([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)")
_MARGIN = 60.0


@dataclass(frozen=True, slots=True, repr=False)
class _Token:
    text: str
    good_until: float


class Tokens:
    """The tokens of the users of this hub.

    Args:
        command: argv; the user's name is appended.
        lifetime: seconds, where a token does not say so itself.
        clock: seconds since the epoch: a token's end is in that.
    """

    def __init__(
        self, command: tuple[str, ...], lifetime: float, commands: Commands, clock: Callable[[], float] = time.time
    ) -> None:
        self._command = command
        self._lifetime = lifetime
        self._commands = commands
        self._clock = clock
        self._tokens: dict[str, _Token] = {}
        self._fetching: dict[str, asyncio.Task[str]] = {}

    async def of(self, user: str) -> str:
        """Return a token that is good for another minute; callers that wait at once share one command."""
        known = self._tokens.get(user)
        if known is not None and self._clock() < known.good_until:
            return known.text
        task = self._fetching.get(user)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(user))
            self._fetching[user] = task
            task.add_done_callback(lambda _: self._fetching.pop(user, None))
        return await asyncio.shield(task)

    def forget(self, user: str, token: str) -> None:
        """Drop a token that Slurm does not take."""
        known = self._tokens.get(user)
        if known is not None and known.text == token:
            del self._tokens[user]

    async def _fetch(self, user: str) -> str:
        answer = await self._commands.run([*self._command, user])
        if answer.code != 0:
            # The command ran and said no; nothing was submitted.
            raise SlurmRejected(f"No Slurm token for {user}: {answer.err.strip()[:300] or 'no reason given'}")
        match = _TOKEN.fullmatch(answer.out.strip())
        if match is None:
            raise SlurmUnreachable("the token command printed something that is no token")
        token = match.group(1)
        now = self._clock()
        # A token that lives for less than the margin is used once.
        self._tokens[user] = _Token(token, (_end_of(token) or now + self._lifetime) - _MARGIN)
        return token


def _end_of(token: str) -> float | None:
    """Return a token's own end. It is not checked here: slurmctld does that."""
    body = token.split(".")[1]
    try:
        said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(said["exp"])
    except (ValueError, KeyError, TypeError):
        return None
