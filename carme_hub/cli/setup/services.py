"""The units of a site in systemd: started, restarted, ended; and the wait until people can log in."""

from __future__ import annotations

import asyncio
import pwd
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

#: Seconds: a start makes certificates the first time; a stop waits for the hub's services.
_SYSTEMCTL_LIMIT, _READY_LIMIT = 120.0, 120.0


def runs_systemd() -> bool:
    """Return whether systemd is this machine's init (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


class Units:
    """The hub's unit and the proxy's.

    Args:
        names: the hub's, the proxy's.
    """

    def __init__(self, commands: Commands, names: tuple[str, str]) -> None:
        self._commands = commands
        self.hub, self.proxy = names

    async def start(self) -> None:
        """Start both, now and with the machine. What runs already stays as it is."""
        await self._systemctl("daemon-reload")
        await self._systemctl("enable", "--now", self.proxy, self.hub)

    async def restart_hub(self) -> None:
        """Restart the hub and not the proxy: sessions and open notebooks continue."""
        await self._systemctl("daemon-reload")
        await self._systemctl("enable", "--now", self.proxy)
        await self._systemctl("enable", self.hub)
        await self._systemctl("restart", self.hub)

    async def run(self) -> bool:
        """Return whether both run, or begin to."""
        answer = await self._commands.run(["systemctl", "is-active", self.hub, self.proxy], timeout=_SYSTEMCTL_LIMIT)
        states = answer.out.split()
        return len(states) == 2 and set(states) <= {"active", "activating", "reloading"}

    async def end(self) -> None:
        """End both, and start neither with the machine. Sessions continue until their jobs end."""
        await self._systemctl("disable", "--now", self.hub, self.proxy)

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
    """Return the seconds until the log-in page is there; right after its start the proxy has no route to the hub.

    Raises:
        CarmeError: it was not there in time.
    """
    began, said = time.monotonic(), "no answer"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while time.monotonic() < began + limit:
            try:
                async with session.get(f"{url}/hub/login") as answer:
                    if answer.status == 200 and "<form" in await answer.text("utf-8", "replace"):
                        return time.monotonic() - began
                    said = f"status {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                said = str(error) or type(error).__name__
            await asyncio.sleep(0.3)
    raise CarmeError(f"{url}/hub/login is not there after {limit:.0f} s ({said})")


def make_state_folder(folder: str, user: str) -> None:
    """Make the state folder where it is missing and systemd does not make it, as it does below /var/lib."""
    path = Path(folder)
    if folder.startswith("/var/lib/") or path.exists():
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.mkdir(mode=0o700)
    shutil.chown(path, user, pwd.getpwnam(user).pw_gid)


def missing_programs(programs: Sequence[str] | frozenset[str]) -> list[str]:
    """Return what has to be installed before the proxy can start."""
    return [name for name in ("node", "configurable-http-proxy") if name not in programs]
