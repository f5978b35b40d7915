"""Record the stalls of a hub's event loop, and their causes; a measured hub imports this module.

A callback ticks on the loop, and a thread checks whether it is late. The output is one JSON object for each stall, each
full garbage collection and each long callback, in milliseconds: its length (``at``), how long the loop's thread worked,
how long it waited for a processor, how long all threads worked; the collections and the callbacks; and the stacks of
the threads, sampled every few milliseconds. In a stall in which the loop's thread neither worked nor waited, another
thread had the interpreter's lock, or the kernel made it wait (for a new process).
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

#: Seconds: the loop's tick, the thread's check, and the shortest stall.
TICK, CHECK_INTERVAL, STALL = 0.005, 0.005, 0.03
#: Seconds of work from which a callback is recorded.
CALLBACK = 0.015
#: Innermost calls that are shown of a thread.
DEPTH = 14


class Stalls:
    """Records the stalls of the loop of the thread that creates it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, out: Path) -> None:
        self._loop, self._out = loop, out
        self._thread = threading.current_thread()
        self._waited = Path(f"/proc/self/task/{self._thread.native_id}/schedstat")
        self._last_tick = self._clocks()
        self._collecting = (0.0, 0.0)
        #: Milliseconds that one callback worked and took, and what it was.
        self._callbacks: list[tuple[float, float, str]] = []
        #: Generation, milliseconds that a collection took, and how many of them it worked.
        self._collections: list[tuple[int, float, float]] = []
        self._late: list[tuple[dict[str, float], dict[str, float], dict[str, Any]]] = []
        gc.callbacks.append(self._collected)
        self._time_callbacks()
        loop.call_soon(self._tick)
        threading.Thread(target=self._watch, daemon=True, name="stalls").start()

    def _tick(self) -> None:
        before, now = self._last_tick, self._clocks()
        self._last_tick = now
        collections, self._collections = self._collections, []
        callbacks, self._callbacks = self._callbacks, []
        full = any(generation == 2 for generation, _, _ in collections)
        if now["at"] - before["at"] - TICK > STALL or full or callbacks:
            self._late.append((before, now, {"collections": collections, "callbacks": callbacks}))
        self._loop.call_later(TICK, self._tick)

    def _time_callbacks(self) -> None:
        """Time the loop's callbacks: on a busy machine a stall consists of many that are due at once."""
        run = asyncio.Handle._run

        def timed(handle: Any) -> None:
            at, worked = time.perf_counter(), time.thread_time()
            run(handle)
            worked = time.thread_time() - worked
            if worked > CALLBACK and threading.current_thread() is self._thread:
                task = getattr(handle._callback, "__self__", None)
                what = task.get_coro().__qualname__ if isinstance(task, asyncio.Task) else repr(handle._callback)
                self._callbacks.append((round(1000 * worked, 1), round(1000 * (time.perf_counter() - at), 1), what))

        asyncio.Handle._run = timed  # type: ignore[method-assign]

    def _collected(self, phase: str, about: dict[str, int]) -> None:
        now = time.perf_counter(), time.thread_time()
        if phase == "start":
            self._collecting = now
        else:
            took, worked = (1000 * (at - since) for at, since in zip(now, self._collecting, strict=True))
            self._collections.append((about["generation"], round(took, 1), round(worked, 1)))

    def _watch(self) -> None:
        ticked, seen = self._last_tick, Counter[str]()
        while True:
            time.sleep(CHECK_INTERVAL)
            if self._last_tick is ticked:
                if time.perf_counter() - ticked["at"] > STALL / 2:
                    seen.update(self._stacks())
                continue
            while self._late:
                self._write(*self._late.pop(0), seen)
            ticked, seen = self._last_tick, Counter()

    def _stacks(self) -> list[str]:
        frames, names = sys._current_frames(), {each.ident: each.name for each in threading.enumerate()}
        found = []
        for ident, frame in frames.items():
            name = names.get(ident, str(ident))
            if name == "stalls":
                continue
            calls: list[str] = []
            at: Any = frame
            while at is not None and len(calls) < DEPTH:
                code = at.f_code
                calls.append(f"{Path(code.co_filename).stem}.{code.co_name}:{at.f_lineno}")
                at = at.f_back
            if ident == self._thread.ident or calls[0].split(":")[0] not in ("thread._worker", "threading.wait"):
                found.append(f"{name}: {' < '.join(calls)}")
        return found

    def _clocks(self) -> dict[str, float]:
        waited = int(self._waited.read_text().split()[1]) / 1e9
        own = {"at": time.perf_counter(), "worked": time.thread_time(), "waited": waited}
        return {**own, "process": time.process_time()}

    def _write(
        self,
        before: dict[str, float],
        after: dict[str, float],
        about: dict[str, Any],
        seen: Counter[str],
    ) -> None:
        spent = {name: round(1000 * (after[name] - before[name])) for name in after}
        line = {"when": round(time.time(), 3), **spent, **about, "seen": seen.most_common(6)}
        with self._out.open("a") as out:
            out.write(json.dumps(line) + "\n")


def watch(path: str) -> None:
    """Record the stalls of the running loop; without one, as in a service that reads the hub's file, do nothing."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    Stalls(loop, Path(path))
