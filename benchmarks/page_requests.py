"""Request pages of a hub at fixed times, in a separate process, whether the hub keeps up or not.

Reads the requests from stdin, as one JSON object, and prints how long each answer took, in ms, by name. A wait counts
from the time at which the request was due. ``benchmarks/scale.py`` starts it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from typing import Any


def request_page(base: str, what: dict[str, Any], end: float, waits: list[float], lock: threading.Lock) -> None:
    """Request one page repeatedly until the end; each request has a thread, so that none waits for another."""
    request = urllib.request.Request(base + what["path"], headers=what["headers"])

    def once(due: float) -> None:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
            if what["has"] not in text:
                raise ValueError(f"it does not say {what['has']!r}")
        except (OSError, ValueError) as error:
            print(f"{what['path']}: {error}", file=sys.stderr, flush=True)
            os._exit(1)  # a failed request gives no figure
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
    args = json.load(sys.stdin)
    waits_by_page: dict[str, list[float]] = {what["name"]: [] for what in args["asks"]}
    end, lock = time.monotonic() + args["seconds"], threading.Lock()
    threads_of_pages = [
        threading.Thread(target=request_page, args=(args["base"], what, end, waits_by_page[what["name"]], lock))
        for what in args["asks"]
    ]
    for each in threads_of_pages:
        each.start()
    for each in threads_of_pages:
        each.join()
    print(json.dumps(waits_by_page))


if __name__ == "__main__":
    main()
