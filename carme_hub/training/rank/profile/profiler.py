"""Profiles the steps from FIRST to LAST of a rank (``--profile FIRST:LAST``), as the code or a library reports them.

The events are in ``profile/rank-<n>.json.gz`` of the run's folder, in the format that Perfetto and Chrome read, and
what they say in ``profile/rank-<n>.json``. The profiler slows the steps that it looks at, and no others.
"""

from __future__ import annotations

import inspect
import json
import resource
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carme_hub.training.rank.progress import PROGRESS
from carme_hub.training.run.messages import PROFILES
from carme_hub.training.run.private_files import write

from .analysis import Event, analyse, sentences
from .memory import analyse_memory, memory_sentences
from .modules import PREFIX, ModuleMarks

#: Marks that the profiler also shows where their kernels ran on the GPU; older releases do not tell them from kernels.
MARKS = (PREFIX, "Optimizer.", "ProfilerStep")
#: torch.autograd.profiler_util.MEMORY_EVENT_NAME.
MEMORY_EVENT = "[memory]"


class Profiler:
    """Follows the steps of this process.

    Args:
        folder: of the run. number: of the rank. first, last: steps, counted from 1.
    """

    def __init__(self, folder: Path, number: int, first: int, last: int) -> None:
        self._folder, self._number, self._first, self._last = folder / PROFILES, number, first, last
        self._step: int | None = None
        self._count, self._began_at = 0, 0
        self._profile: Any = None
        self._marks: ModuleMarks | None = None
        self._held = 0
        self._done = False

    def install(self) -> None:
        """Have the steps of this process counted."""
        PROGRESS.listen(self._after_step)

    def _after_step(self, step: int) -> None:
        if self._done or step == self._step:  # a library reports the same step again with its epoch
            return
        self._step, self._count = step, self._count + 1
        if self._profile is None and self._count >= self._first - 1:
            self._begin()
        elif self._profile is not None and self._count >= self._last:
            self.finish()

    def _begin(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            self._done = True
            print("[carme] --profile needs torch, which this code has not imported.", flush=True)  # noqa: T201
            return
        try:
            import torch.profiler as profiler

            kinds = [profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                kinds.append(profiler.ProfilerActivity.CUDA)
            # Newer versions forget the events at the end of a cycle unless they are told to add them up.
            more = {"acc_events": True} if "acc_events" in inspect.signature(profiler.profile).parameters else {}
            self._profile = profiler.profile(activities=kinds, profile_memory=True, **more)
            self._began_at = self._count
            self._marks = ModuleMarks(torch)
            self._profile.start()
            gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
            self._held = sum(torch.cuda.memory_allocated(each) for each in gpus)
            self._marks.install()
        except Exception:  # noqa: BLE001  a profile is no reason to end a training
            self._give_up()

    def finish(self) -> None:
        """Write what was profiled; where the code has ended early, of fewer steps."""
        profile, self._profile = self._profile, None
        self._unmark()
        if self._done:
            return
        self._done = True
        if profile is None:
            text = f"this rank reported {self._count} steps, so none was profiled."
            print(f"[carme] --profile {self._first}:{self._last}: {text}", flush=True)  # noqa: T201
            return
        try:
            self._write(profile, max(1, self._count - self._began_at))
        except Exception:  # noqa: BLE001  the same
            self._give_up()

    def drop(self) -> None:
        """Write nothing: the code has failed, and its error is to be reported before anything else."""
        self._done, self._profile = True, None
        self._unmark()

    def _unmark(self) -> None:
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.remove()

    def _write(self, profile: Any, steps: int) -> None:
        torch = sys.modules["torch"]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profile.stop()
        gpu = torch.cuda.max_memory_allocated() / (1 << 30) if torch.cuda.is_available() else None
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # KiB, getrusage(2)
        events = [
            Event(each.name, each.time_range.start, each.time_range.end, "CPU" not in str(each.device_type))
            for each in profile.events()
            if "CPU" in str(each.device_type)
            or not (getattr(each, "is_user_annotation", False) or each.name.startswith(MARKS))
        ]
        begin = min((each.begin for each in events), default=0.0)
        end = max((each.end for each in events), default=0.0)
        found = analyse(events, begin, end, steps, gpu_gib=gpu, host_gib=host)
        on_gpu = torch.cuda.is_available()
        memory = analyse_memory(events, _changes(profile, on_gpu), self._held)
        said = sentences(found) + (memory_sentences(memory, on_gpu=on_gpu) if memory else [])
        self._folder.mkdir(mode=0o700, exist_ok=True)
        trace = self._folder / f"rank-{self._number}.json.gz"
        profile.export_chrome_trace(str(trace))
        trace.chmod(0o600)
        text = {**asdict(found), "sentences": said, "memory": asdict(memory) if memory else None}
        write(self._folder / f"rank-{self._number}.json", json.dumps(text).encode())
        if self._number == 0:
            print(*(f"[carme] {line}" for line in said), sep="\n", flush=True)  # noqa: T201

    def _give_up(self) -> None:
        self._done, self._profile = True, None
        self._unmark()
        traceback.print_exc()
        print("[carme] This rank could not be profiled; the training goes on.", file=sys.stderr)  # noqa: T201


def _changes(profile: Any, on_gpu: bool) -> list[tuple[float, int]]:
    """Return the changes of the allocated memory, of the GPUs or else the host: microseconds, and bytes.

    torch has them in the results below its list of events; a release that has them elsewhere gives none.
    """
    try:
        results = profile.profiler.kineto_results
        first, every = results.trace_start_ns(), results.events()
        return [
            ((each.start_ns() - first) / 1000, each.nbytes())
            for each in every
            if each.name() == MEMORY_EVENT and ("CPU" not in str(each.device_type())) == on_gpu
        ]
    except AttributeError:
        return []
