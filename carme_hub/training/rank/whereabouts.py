"""Where the code of a rank is, for a run that hangs: from the stack of its main thread, which goes on meanwhile.

The heartbeat thread looks at it (``sys._current_frames``), also while the main thread waits inside a library. Where
code keeps Python's lock, the heartbeat stops too; then faulthandler's watchdog, which needs no lock, writes all stacks.
A process has one such watchdog: code that calls ``faulthandler.dump_traceback_later`` itself has it until the next
heartbeat.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .collectives import newest_collectives

#: Seconds without progress after which a rank tells where it is; and without a heartbeat, until the watchdog writes.
TELL_SECONDS, WATCHDOG_SECONDS = 20.0, 30.0
#: Seconds without a step or a new collective after which a rank that works may wait for NCCL.
PENDING_SECONDS = 5.0
#: The share of a processor below which the main thread waits.
WAITING_SHARE = 0.05
#: Functions in which a rank waits for the others, by the end of their file's path.
_COLLECTIVES = ("torch/distributed/distributed_c10d.py", "horovod/torch/mpi_ops.py", "horovod/common/util.py")
_WAITS = ("torch/autograd/graph.py",)  # the hooks of a backward pass reduce the gradients
_FOREIGN = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")


def stack_file(folder: Path, rank: int) -> Path:
    """Return the file in a run's folder that has the newest stacks of a rank."""
    return folder / f"stack-{rank}.txt"


class Whereabouts:
    """Follows the main thread of this process.

    Args:
        folder: of the run. number: of the rank. interval: seconds between two heartbeats.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, folder: Path, number: int, interval: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watchdog_seconds = max(WATCHDOG_SECONDS, 3 * interval)
        self._file, self._clock = stack_file(folder, number), clock
        self._progress: object = None
        self._since, self._last, self._changed = clock(), clock(), clock()
        self._pending: list[tuple[str, int]] = []  # collectives that had not ended at the last look
        self._cpu = _main_thread_seconds()
        self._written = 0.0
        self._collectives: list[dict[str, Any]] = []
        self._watchdog: Any = None

    def look(self, step: int | None) -> dict[str, Any] | None:
        """Return where the main thread is, None where it goes on; call it with each heartbeat.

        Args:
            step: the newest step that the code has reported.

        Returns:
            ``function``, ``file``, ``line``, ``seconds`` without progress, whether it ``waits`` for other ranks, and
            ``collectives``: the newest of each process group.
        """
        now, cpu = self._clock(), _main_thread_seconds()
        progress, waits = (step, _collectives_done()), False
        works = cpu - self._cpu > WAITING_SHARE * (now - self._last)
        if progress != self._progress:
            self._progress, self._since, self._changed = progress, now, now
            self._pending = []
        # NCCL waits with a busy processor, so a rank that is in a collective goes on only where the count does.
        elif works and not describe(_main_frame())["waits"]:
            waits = self._waits_for_nccl(now)
            self._since = self._since if waits else now
        self._last, self._cpu = now, cpu
        self._arm()
        if now - self._since < TELL_SECONDS:
            return None
        if now - self._written > TELL_SECONDS:
            self._written = now
            self.write()
            self._collectives = newest_collectives()
        stands = {"seconds": round(now - self._since), "collectives": self._collectives}
        found = describe(_main_frame()) | stands
        return found | {"waits": found["waits"] or waits}

    def _waits_for_nccl(self, now: float) -> bool:
        """Return whether a collective that was begun does not end.

        Code that wants its result waits with a busy processor, and may be anywhere, such as in ``loss.item()``.
        """
        if now - self._changed < PENDING_SECONDS:
            return False
        before = self._pending
        self._pending = [(each["key"], each["number"]) for each in newest_collectives() if not each["done"]]
        return bool(self._pending) and self._pending == before

    def write(self) -> None:
        """Write the stacks of all threads to the run's folder."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        parts = []
        for ident, frame in sys._current_frames().items():
            if ident == threading.get_ident():
                continue
            stack = "".join(traceback.format_stack(frame))
            parts.append(f"Thread {names.get(ident, ident)}:\n{stack}")
        with contextlib.suppress(OSError):  # a full disk
            part = self._file.with_suffix(".part")
            part.write_text("\n".join(parts))
            part.replace(self._file)

    def _arm(self) -> None:
        """Have faulthandler write all stacks unless the next heartbeat comes first."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._watchdog is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._watchdog = os.open(self._file.with_suffix(".locked.txt"), flags, 0o600)
            faulthandler.dump_traceback_later(self._watchdog_seconds, exit=False, file=self._watchdog)

    def close(self) -> None:
        """Stop the watchdog."""
        faulthandler.cancel_dump_traceback_later()
        if self._watchdog is not None:
            os.close(self._watchdog)
            self._watchdog = None
            with contextlib.suppress(OSError):
                locked = self._file.with_suffix(".locked.txt")
                if not locked.stat().st_size:
                    locked.unlink()


def describe(frame: FrameType | None) -> dict[str, Any]:
    """Describe a stack by the collective that it waits in, or else by the innermost function of the user's own code."""
    frames = list(_frames(frame))
    if not frames:
        return {"function": "", "file": "", "line": 0, "waits": False}
    waiting = next((each for each in reversed(frames) if _ends(each, _COLLECTIVES)), None)
    waits = waiting is not None or any(each.f_code.co_filename.endswith(_WAITS) for each in frames)
    own = next((each for each in frames if not _is_foreign(each)), frames[0])
    return {
        "function": (waiting or own).f_code.co_name,
        "file": Path(own.f_code.co_filename).name,
        "line": own.f_lineno,
        "waits": waits,
    }


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _ends(frame: FrameType, names: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.endswith(names) and not frame.f_code.co_name.startswith(("_", "wrapper"))


def _is_foreign(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _FOREIGN)


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _main_thread_seconds() -> float:
    """Return the processor time of the main thread."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
    except OSError:
        return 0.0


def _collectives_done() -> int | None:
    """Return how many collectives torch has begun in this process; None where it has no process group."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        if module is None or not module.is_initialized():
            return None
        groups = list(module._world.pg_map)
        return sum(int(group._get_sequence_number_for_group()) for group in groups)
    except (AttributeError, RuntimeError, ValueError):  # another release of torch, or a group that ends
        return None
