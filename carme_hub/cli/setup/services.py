"""The units of a site in systemd: started, restarted, ended; the wait until the hub answers; and its folder."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from carme_hub.errors import CarmeError, ConfigError
from carme_hub.slurm.command import Commands

UNITS = Path("/etc/systemd/system")
#: Seconds: a start makes certificates the first time; a stop waits for the hub's services.
_SYSTEMCTL_LIMIT, _READY_LIMIT = 120.0, 120.0


def runs_systemd() -> bool:
    """Return whether systemd is this machine's init (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


class Units:
    """The hub's unit and the proxy's.

    Args:
        names: the hub's, the proxy's. timers: started with them, where setup has written them.
    """

    def __init__(self, commands: Commands, names: tuple[str, str], timers: Sequence[str] = ()) -> None:
        self._commands = commands
        self.hub, self.proxy = names
        self._timers = tuple(timers)

    async def start(self) -> None:
        """Start both, now and with the machine. What runs already stays as it is."""
        await self._systemctl("daemon-reload")
        await self._systemctl("enable", "--now", self.proxy, self.hub)
        await self._start_timers()

    async def restart_hub(self) -> None:
        """Restart the hub and not the proxy: sessions and open notebooks continue."""
        await self._systemctl("daemon-reload")
        await self._systemctl("enable", "--now", self.proxy)
        await self._systemctl("enable", self.hub)
        await self._systemctl("restart", self.hub)
        await self._start_timers()

    async def _start_timers(self) -> None:
        if names := self.timers():
            await self._systemctl("enable", "--now", *names)

    async def end_timers(self) -> None:
        """End the timers that are there: their files are about to go."""
        if names := self.timers():
            await self._systemctl("disable", "--now", *names)

    async def run(self) -> bool:
        """Return whether both run, or begin to."""
        answer = await self._commands.run(["systemctl", "is-active", self.hub, self.proxy], timeout=_SYSTEMCTL_LIMIT)
        states = answer.out.split()
        return len(states) == 2 and set(states) <= {"active", "activating", "reloading"}

    def there(self) -> list[str]:
        """Return those of the two of which there is a file where setup writes it."""
        return [name for name in (self.hub, self.proxy) if (UNITS / name).exists()]

    def timers(self) -> list[str]:
        """Return the timers of which there is such a file."""
        return [name for name in self._timers if (UNITS / name).exists()]

    async def end(self) -> None:
        """End those that are there, and start none with the machine. Sessions continue until their jobs end."""
        if names := [*self.there(), *self.timers()]:
            await self._systemctl("disable", "--now", *names)

    async def forget(self) -> None:
        """Have systemd notice that files of units are gone."""
        await self._systemctl("daemon-reload")

    async def _systemctl(self, *words: str) -> None:
        answer = await self._commands.run(["systemctl", *words], timeout=_SYSTEMCTL_LIMIT)
        if answer.code != 0:
            raise CarmeError(
                f"systemctl {' '.join(words)}: {answer.message}. See: journalctl -u {self.hub} -u {self.proxy}"
            )


async def wait_until_ready(url: str, limit: float = _READY_LIMIT) -> float:
    """Return the seconds until the hub answers through the proxy, which right after its start has no route to it.

    It is asked for its API's version: what the log-in page is depends on how people log in, and may be elsewhere.

    Raises:
        CarmeError: it was not there in time.
    """
    began, said = time.monotonic(), "no answer"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while time.monotonic() < began + limit:
            try:
                async with session.get(f"{url}/hub/api/", allow_redirects=False) as answer:
                    if answer.status == 200 and '"version"' in await answer.text("utf-8", "replace"):
                        return time.monotonic() - began
                    said = f"status {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                said = str(error) or type(error).__name__
            await asyncio.sleep(0.3)
    raise CarmeError(f"{url}/hub/api/ is not there after {limit:.0f} s ({said})")


def check_state_folder(folder: str, user: str) -> None:
    """Refuse a folder that is somebody else's: systemd would give it, and all that is in it, to the hub's user.

    Raises:
        ConfigError: it is no folder, or belongs to another user.
    """
    path = Path(folder)
    if not path.exists():
        return
    owner = path.stat().st_uid
    if not path.is_dir() or owner != pwd.getpwnam(user).pw_uid:
        raise ConfigError(
            f"state_folder: {folder} is there and does not belong to {user} (its owner has the number {owner}). Name "
            f"another folder; or, where it is the hub's: chown -R {user} {folder}"
        )


def make_state_folder(folder: str, user: str) -> None:
    """Make the state folder where it is missing and systemd does not make it, as it does below /var/lib."""
    path = Path(folder)
    if folder.startswith("/var/lib/") or path.exists():
        return
    for above in reversed([each for each in path.parents if not each.exists()]):
        above.mkdir()
        above.chmod(0o755)  # whatever root's umask is: the hub has to enter it
    path.mkdir(mode=0o700)
    who = pwd.getpwnam(user)
    os.chown(path, who.pw_uid, who.pw_gid, follow_symlinks=False)


def missing_programs(programs: Sequence[str] | frozenset[str]) -> list[str]:
    """Return what has to be installed before the proxy can start."""
    return [name for name in ("node", "configurable-http-proxy") if name not in programs]
