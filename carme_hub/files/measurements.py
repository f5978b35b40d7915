"""What was measured of folders in this session, for the page *Files*; the home's goes to the hub once a day."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from carme_hub.files.measure import MOST_SECONDS

#: Folders that are remembered, and seconds between two measurements of the home.
REMEMBERED, EVERY = 50, 86_400.0
_LONGEST = 1 << 20


class Measurements:
    """Measures folders, one at a time.

    Args:
        send: sends what was measured of the home to the hub. age: returns the seconds since the hub got one, from any
            session of the user; None = there is no hub, or it does not answer.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
        age: Callable[[], Awaitable[float | None]],
        home: Path | None = None,
    ) -> None:
        self._send, self._age, self._home = send, age, home or Path.home()
        self._known: OrderedDict[Path, tuple[float, dict[str, Any]]] = OrderedDict()
        self._tasks: dict[Path, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()
        self._looked = float("-inf")

    def of(self, folder: Path) -> tuple[float, Mapping[str, Any]] | None:
        """Return when a folder was measured, and what was found; None where it was not."""
        return self._known.get(folder)

    def runs(self, folder: Path) -> bool:
        """Return whether a folder is being measured, or waits for that."""
        return folder in self._tasks

    def start(self, folder: Path) -> None:
        """Measure a folder, unless that goes on."""
        if folder not in self._tasks and len(self._tasks) < REMEMBERED:
            task = asyncio.get_running_loop().create_task(self._measure(folder), name="carme-measure")
            self._tasks[folder] = task
            task.add_done_callback(lambda _task: self._tasks.pop(folder, None))

    async def look_daily(self) -> None:
        """Measure the home whenever the hub has nothing of the last day, as long as the session lasts.

        Once a day it is in any case: a hub that does not take the result is no reason to measure every hour.
        """
        while True:
            age = await self._age()
            if age is not None and age >= EVERY and time.monotonic() - self._looked >= EVERY:
                self._looked = time.monotonic()
                self.start(self._home)
            await asyncio.sleep(EVERY / 24)

    async def _measure(self, folder: Path) -> None:
        async with self._one:
            argv = (sys.executable, "-m", "carme_hub.files.measure", str(folder))
            pipe = asyncio.subprocess.PIPE
            # Not in the server's folder: Python would import what lies there.
            process = await asyncio.create_subprocess_exec(
                *argv, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, cwd="/"
            )
            try:
                out, _ = await asyncio.wait_for(process.communicate(), MOST_SECONDS + 60)
                found = json.loads(out[:_LONGEST]) if process.returncode == 0 else None
            except (TimeoutError, ValueError):
                found = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    if process.returncode is None:
                        process.kill()
        if found is None:
            return
        self._known.pop(folder, None)
        self._known[folder] = (time.time(), found)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if folder == self._home:
            await self._send(found)
