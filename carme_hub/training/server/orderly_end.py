"""Puts a session in order before the hub ends it: runs save, kernels are interrupted, the site's command runs.

The hub asks by ``POST <base>/carme/end`` with ``{"key": …, "unless_at_work": true}`` and the token of JupyterHub. In
this order, each bounded in time:

1. Where something is at work, nothing is done: the hub's evidence is minutes old, and this is newer. It is looked again
   at the end.
2. Live runs of ``%%distributed`` are told that their time is nearly over (``here.on_time_limit``), and have so long
   to end.
3. Kernels get SIGINT, as by the button of the notebook, and a cell that was computing may handle it.
4. Commands run: ``~/.carme/before-end`` of the user, then the site's (``CarmeActivity.before_end``).
5. Of each notebook with a kernel it is looked up when it was saved last. A server cannot save what is only in a
   browser: JupyterLab saves all documents itself when the last warning comes, and once more before the end.

A question that comes again with the same key is answered with the same answer, and does nothing twice; but where
something has begun to work since then, the answer says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .work import busy_kernels, busy_terminals, live_runs

#: Seconds in which runs may end, in which a cell may handle its interrupt, and for one command without another setting.
RUN_SECONDS, KERNEL_SECONDS, COMMAND_SECONDS = 60.0, 10.0, 60.0
#: Seconds between two looks, and that a command has after TERM.
LOOK, TERM_SECONDS = 0.5, 2.0
#: Names that the answer has at most.
MOST_NOTEBOOKS = 20
#: The user's own command, below the home, and the variable with the site's: JSON with ``argv`` and ``seconds``.
OWN_COMMAND, VARIABLE = ".carme/before-end", "CARME_BEFORE_END"
#: What the commands write, in the session folder.
LOG = "before-end.log"


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What is needed of a Jupyter server.

    Attributes:
        kernels, terminals: return the server's own, as for ``WorkFile``. runs: returns the rows of the page of runs.
        interrupt: sends SIGINT to a kernel. notebooks: returns path and time of the last save of those with a kernel.
        announce: tells a run that it has so many seconds left.
    """

    kernels: Callable[[], Sequence[Mapping[str, Any]]]
    terminals: Callable[[], Iterable[Any]]
    runs: Callable[[], Iterable[Mapping[str, Any]]]
    interrupt: Callable[[str], Awaitable[None]]
    notebooks: Callable[[], Awaitable[list[tuple[str, float]]]]
    announce: Callable[[str, float], None]


class OrderlyEnd:
    """Puts the session in order, once for each key."""

    def __init__(
        self,
        parts: ServerParts,
        environ: Mapping[str, str] = os.environ,
        run_seconds: float = RUN_SECONDS,
        kernel_seconds: float = KERNEL_SECONDS,
    ) -> None:
        self._parts, self._environ = parts, environ
        self._run_seconds, self._kernel_seconds = run_seconds, kernel_seconds
        self._session = environ.get("CARME_SESSION", "")
        self._tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def end(self, key: str, *, unless_at_work: bool) -> dict[str, Any]:
        """Put it in order, and return what was done; ``{"at_work": …}`` where nothing was, with what is at work.

        Returns:
            ``kernels``: that were interrupted. ``runs``, ``runs_ended``: that were told, and of them those that ended.
            ``commands``: of each ``name``, ``status`` (null = it did not end in time, or could not be started) and
            ``seconds``. ``notebooks``: of each ``name`` and ``saved`` (UTC epoch seconds), those saved first at first.
        """
        task = self._tasks.get(key)
        is_over = task is not None and task.done()
        if task is None:
            self._tasks.clear()  # one end at a time; that of another key is over
            task = self._tasks[key] = asyncio.create_task(self._end(unless_at_work))
        found = await asyncio.shield(task)
        if is_over and unless_at_work and "at_work" not in found:
            # The first answer is old, as after a hub that was killed: somebody may have begun to work since then.
            at_work = self._at_work(await asyncio.to_thread(self._parts.runs))
            found = {"at_work": at_work} if at_work else found
        if "at_work" in found and self._tasks.get(key) is task:
            del self._tasks[key]
        return found

    async def _end(self, unless_at_work: bool) -> dict[str, Any]:
        rows = list(await asyncio.to_thread(self._parts.runs))
        at_work = self._at_work(rows)
        if at_work and unless_at_work:
            return {"at_work": at_work}
        live = [str(row["id"]) for row in rows if live_runs([row], self._session)]
        done = {
            "runs": len(live),
            "runs_ended": await self._end_runs(live) if live else 0,
            "kernels": await self._interrupt(),
            "commands": [await run_command(*each, self._environ) for each in commands(self._environ)],
            "notebooks": await self._saved(),
        }
        # Somebody may have begun to work while commands ran.
        at_work = self._at_work(await asyncio.to_thread(self._parts.runs)) if unless_at_work else {}
        return {"at_work": at_work} if at_work else done

    def _at_work(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        found = {
            "kernels": busy_kernels(self._parts.kernels()),
            "terminals": busy_terminals(self._parts.terminals()),
            "runs": live_runs(rows, self._session),
        }
        return {name: count for name, count in found.items() if count}

    async def _end_runs(self, ids: Sequence[str]) -> int:
        """Tell runs that their time is nearly over, wait for them, and return how many have ended."""
        for id in ids:
            with contextlib.suppress(Exception):  # it has ended, or its conductor does not answer: others are told
                await asyncio.to_thread(self._parts.announce, id, self._run_seconds)
        until, live = time.monotonic() + self._run_seconds, set(ids)
        while live and time.monotonic() < until:
            await asyncio.sleep(LOOK)
            rows = await asyncio.to_thread(self._parts.runs)
            live &= {str(row["id"]) for row in rows if live_runs([row], self._session)}
        return len(ids) - len(live)

    async def _interrupt(self) -> int:
        """Interrupt all kernels, let cells that were computing end, and return how many got the signal."""
        count = 0
        for model in self._parts.kernels():
            with contextlib.suppress(Exception):  # a kernel that has just ended, or that cannot be interrupted
                await self._parts.interrupt(str(model["id"]))
                count += 1
        until = time.monotonic() + self._kernel_seconds
        while busy_kernels(self._parts.kernels()) and time.monotonic() < until:  # noqa: ASYNC110  no event tells it
            await asyncio.sleep(LOOK)
        return count

    async def _saved(self) -> list[dict[str, Any]]:
        try:
            found = await self._parts.notebooks()
        except Exception:  # noqa: BLE001  any contents manager of any site
            return []
        return [{"name": name, "saved": int(at)} for name, at in sorted(found, key=lambda each: each[1])][
            :MOST_NOTEBOOKS
        ]


def commands(environ: Mapping[str, str]) -> list[tuple[list[str], float]]:
    """Return the commands that run before the end, with their seconds: the user's own, then the site's."""
    site: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError):
        site = json.loads(environ.get(VARIABLE) or "{}")
    seconds = float(site.get("seconds") or COMMAND_SECONDS)
    own = Path(environ.get("HOME") or "/") / OWN_COMMAND
    found = [([str(own)], seconds)] if own.is_file() and os.access(own, os.X_OK) else []
    argv = [str(word) for word in site.get("argv") or ()]
    return [*found, (argv, seconds)] if argv else found


async def run_command(argv: Sequence[str], seconds: float, environ: Mapping[str, str]) -> dict[str, Any]:
    """Run a command in its home; what it writes goes to the session folder. One that takes too long is ended."""
    began, status = time.monotonic(), None
    folder = environ.get("CARME_SESSION_FOLDER") or environ.get("HOME") or "/"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        log = os.open(Path(folder) / LOG, flags, 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=environ.get("HOME") or None,
            start_new_session=True,
        )
    except OSError:
        return {"name": Path(argv[0]).name, "status": None, "seconds": 0}
    finally:
        os.close(log)
    try:
        status = await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        await _kill(process)
    return {"name": Path(argv[0]).name, "status": status, "seconds": round(time.monotonic() - began)}


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a command and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), TERM_SECONDS)
