"""What the session uses and what is left of it, for the status bar, the panel and the warnings in JupyterLab.

``GET <base>/carme/activity`` answers what the reporter keeps in the session folder, and the state of the session that
the hub tells, which is asked at most once a minute for all tabs. ``?curve=1`` adds the last hour.
``POST <base>/carme/activity`` with ``{"do": "extend", "minutes": 30}``, ``{"do": "here"}`` or ``{"do": "seen",
"message": ID}`` asks the hub for it. The token stays in the server.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from .usage_files import curve, newest_sample

#: Seconds for which the hub's answer is passed on, and for its answer; seconds and points of a curve.
HUB_AGE, TIME_LIMIT, CURVE_SECONDS, CURVE_POINTS = 60.0, 10.0, 3600.0, 120
#: Seconds until the hub has seen in Slurm what it has changed there.
LOOK_AGE = 20.0
#: What the hub may be asked for.
EXTEND, HERE, SEEN = "extend", "here", "seen"
_ID = re.compile("[0-9a-f-]{36}")


class SessionActivity:
    """What a session uses and what is left of it.

    Args:
        kernels: returns the pids of kernels by their id.
        disk: returns what to say of the user's places (``DiskOfHub``).
    """

    def __init__(
        self,
        kernels: Callable[[], Mapping[str, int]],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
        disk: Callable[[], Sequence[Mapping[str, str]]] = lambda: (),
    ) -> None:
        self._kernels, self._environ, self._clock, self._disk = kernels, environ, clock, disk
        folder = environ.get("CARME_SESSION_FOLDER", "")
        self.folder = Path(folder) if folder else None
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._state: dict[str, Any] | None = None
        self._problem = ""

    def view(self, *, with_curve: bool) -> dict[str, Any]:
        """Return what there is; ``used`` and ``state`` are null where they are not known."""
        now = self._clock()
        used = newest_sample(self.folder, now) if self.folder is not None else None
        if used is not None:
            _name_kernels(used, self._kernels())
        state, problem = self._ask_state(now)
        found: dict[str, Any] = {"now": int(now), "used": used, "state": state, "problem": problem}
        if self._environ.get("CARME_HOME_FULL"):  # carme_hub/node/batch_parts/full_home.py
            found["home_full"] = True
        if warnings := self._disk():
            found["disk"] = [dict(each) for each in warnings]
        if with_curve and self.folder is not None:
            found["curve"] = curve(self.folder, now - CURVE_SECONDS, CURVE_POINTS)
        return found

    def _ask_state(self, now: float) -> tuple[dict[str, Any] | None, str]:
        """Return what the hub last told, and why it tells nothing now."""
        with self._lock:
            if now - self._asked_at >= HUB_AGE:
                self._asked_at = now
                self._refresh()
            return self._state, self._problem

    def _refresh(self) -> None:
        from carme_hub.training.session.companions import NoHub, Refused

        try:
            self._state, self._problem = self._hub().ask("GET", ""), ""
        except NoHub:
            self._problem = "The hub does not answer, so this may be out of date."
        except Refused as error:  # an older hub does not know the question
            self._state, self._problem = None, str(error)

    def _hub(self) -> Any:
        from carme_hub.training.session.companions import Hub

        hub = Hub.from_environ(self._environ)
        return replace(hub, url=hub.url.removesuffix("/companions"), time_limit=TIME_LIMIT)

    def do(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the hub for what a button wants, and return what to tell the user.

        Raises:
            ValueError: there is no such button.
        """
        from carme_hub.training.session.companions import NoHub, Refused

        what, minutes, id = body.get("do"), body.get("minutes"), body.get("message")
        answer: Mapping[str, Any] = {}
        valid = {EXTEND: type(minutes) is int, HERE: True, SEEN: isinstance(id, str) and bool(_ID.fullmatch(id))}
        if not isinstance(what, str) or not valid.get(what):
            raise ValueError('Send {"do": "extend", "minutes": N}, {"do": "here"} or {"do": "seen", "message": ID}.')
        try:
            if what == EXTEND:
                answer = self._hub().ask("POST", "/time-limit", {"minutes": minutes})
                message = f"It has time until {answer.get('said', '')}."
                message = " ".join([message, *map(str, answer.get("warnings") or ())])
            elif what == SEEN:
                self._hub().ask("POST", f"/messages/{id}/seen", {})
                message = "It is not shown again."
            else:
                self._hub().ask("POST", "/still-here", {})
                message = "Its idle time begins anew."
            done = True
        except Refused as error:
            done, message = False, str(error)
        except NoHub:
            done, message = False, "The hub does not answer. It is not known whether it was done."
        with self._lock:
            self._asked_at = float("-inf")
            if done and what == EXTEND and self._state is not None and "ends" in answer:
                # The hub's next look at Slurm is some seconds away; until then it would tell the time before.
                self._state = {**self._state, "ends": answer["ends"], "said": answer.get("said", "")}
                self._asked_at = self._clock() - HUB_AGE + LOOK_AGE
        return {"done": done, "message": message}


def _name_kernels(used: dict[str, Any], kernels: Mapping[str, int]) -> None:
    """Add the id of its kernel to each process of a GPU that is one."""
    ids = {pid: id for id, pid in kernels.items()}
    for gpu in _dicts(used.get("gpus")):
        for process in _dicts(gpu.get("processes")):
            process["kernel"] = ids.get(process.get("inside"), "")  # type: ignore[arg-type]


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def kernel_pids(manager: Any) -> dict[str, int]:
    """Return the pids of a server's kernels by their id; those that are not known are left out."""
    found = {}
    for id in list(manager.list_kernel_ids()):
        pid = getattr(getattr(manager.get_kernel(id), "provisioner", None), "pid", None)
        if isinstance(pid, int):
            found[id] = pid
    return found
