"""A cache of short-lived Slurm tokens, one per user, each used until a minute before its expiry.

The hub has no key: ``token_command`` has it, decides for which users it issues a token, and prints it. Tokens stay in
this process's memory; they are never in an argv, a log line or a message.
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
    expires: float


class TokenCache:
    """The tokens of the users of this hub.

    Args:
        command: argv; the user's name is appended.
        lifetime: seconds, for tokens without an expiry.
        clock: epoch seconds, as in a token's expiry.
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
        """Return a token that is valid for another minute; simultaneous callers share one command."""
        known = self._tokens.get(user)
        if known is not None and self._clock() < known.expires:
            return known.text
        task = self._fetching.get(user)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(user))
            self._fetching[user] = task
            task.add_done_callback(lambda _: self._fetching.pop(user, None))
        return await asyncio.shield(task)

    def forget(self, user: str, token: str) -> None:
        """Drop a token that Slurm does not accept."""
        known = self._tokens.get(user)
        if known is not None and known.text == token:
            del self._tokens[user]

    async def _fetch(self, user: str) -> str:
        answer = await self._commands.run([*self._command, user])
        if answer.code != 0:
            # The command ran and refused; nothing was submitted.
            raise SlurmRejected(f"No Slurm token for {user}: {answer.err.strip()[:300] or 'no reason given'}")
        match = _TOKEN.fullmatch(answer.out.strip())
        if match is None:
            raise SlurmUnreachable("the token command did not print a token")
        token = match.group(1)
        now = self._clock()
        # A token with a shorter lifetime than the margin is used once.
        self._tokens[user] = _Token(token, (_end_of(token) or now + self._lifetime) - _MARGIN)
        return token


def _end_of(token: str) -> float | None:
    """Return a token's own expiry. Only slurmctld verifies the token."""
    body = token.split(".")[1]
    try:
        reply = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(reply["exp"])
    except (ValueError, KeyError, TypeError):
        return None
