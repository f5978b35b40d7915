"""Somebody who asks a hub for pages at fixed times, in a process of their own, whether the hub keeps up or not.

Reads from stdin what to ask, as one JSON object, and prints how long each answer took, in ms, by name. A wait counts
from when the request was due.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from typing import Any


def ask(base: str, what: dict[str, Any], end: float, waits: list[float], lock: threading.Lock) -> None:
    """Ask for one page again and again until the end; each request has a thread, so that none waits for another."""
    request = urllib.request.Request(base + what["path"], headers=what["headers"])

    def once(due: float) -> None:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
            if what["has"] not in text:
                raise ValueError(f"it does not say {what['has']!r}")
        except (OSError, ValueError) as error:
            print(f"{what['path']}: {error}", file=sys.stderr, flush=True)
            os._exit(1)  # figures of what failed are none
        with lock:
            waits.append(1000 * (time.monotonic() - due))

    threads, due = [], time.monotonic()
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        threads.append(threading.Thread(target=once, args=(due,)))
        threads[-1].start()
        due += what["every"]
    for thread in threads:
        thread.join()


def main() -> None:
    wanted = json.load(sys.stdin)
    found: dict[str, list[float]] = {what["name"]: [] for what in wanted["asks"]}
    end, lock = time.monotonic() + wanted["seconds"], threading.Lock()
    askers = [
        threading.Thread(target=ask, args=(wanted["base"], what, end, found[what["name"]], lock))
        for what in wanted["asks"]
    ]
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
