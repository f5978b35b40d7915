"""How long after a server's death its visitors read that it has ended, while Slurm answers and while it does not.

Runs as ``python benchmarks/server_end.py`` (about four minutes, as root); prints one JSON object a line. The server's
process gets KILL while a user's browser has the lab open; from then on its page is requested repeatedly. There
is no peer: JupyterHub itself sees the end of a server by a poll, every 30 seconds at its defaults.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from hubs import need_root, sandbox
from measure import figure, load, log_progress, median

from carme_hub.sandbox.demo import Demo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from rig.faults import server_process
from rig.hub import Hub, wait_for
from rig.truth import Truth

GOAL = 1.0
INTERVAL, TIMEOUT = 0.02, 60.0
END_TEXTS = ("Your server has ended", "Your last session ended")


def measure_end(hub: Hub, user: str, *, silent: bool) -> tuple[float, int]:
    """Kill a user's server; return the seconds until a visitor reads it, and the number of empty pages before."""
    hub.start_server(user, profile="cpu")
    visitor, truth, path = hub.login(user), Truth(hub), f"/user/{user}/lab"
    assert visitor.get(path).status == 200
    session = truth.row(user).id
    if silent:
        hub.cluster.freeze("slurmctld")
    try:
        os.kill(server_process(session), signal.SIGKILL)
        began, empty_pages = time.monotonic(), 0
        while not any(words in (text := str(visitor.get(path).body)) for words in END_TEXTS):
            empty_pages += not text.strip()
            if time.monotonic() > began + TIMEOUT:
                raise SystemExit(f"The page does not show the end after {TIMEOUT:g} s")
            time.sleep(INTERVAL)
        took = time.monotonic() - began
    finally:
        if silent:
            hub.cluster.thaw("slurmctld")
    wait_for(lambda: not truth.session(session).open, 120, "the session to be closed")
    return took, empty_pages


def main() -> int:
    """Measure, print the figures and return 0 where every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--keep", action="store_true", help="keep the sandbox for the next run")
    args = parser.parse_args()
    need_root()
    found: dict[bool, list[float]] = {False: [], True: []}
    empty = 0
    with sandbox("ended", 4, keep=args.keep) as where:
        hub = Hub(Demo.prepare(where, log_progress))
        hub._progress = log_progress  # stdout is for figures
        hub.start()
        for number in range(args.rounds):
            for silent in (False, True):
                took, empty_pages = measure_end(hub, "bob", silent=silent)
                found[silent].append(took)
                empty += empty_pages
                log_progress(f"round {number + 1}, Slurm {'silent' if silent else 'answering'}: {took:.2f} s")
        hub.stop()
    holds = True
    for silent, times in found.items():
        name = f"a server's death to its visitors reading it, Slurm {'silent' if silent else 'answering'}"
        holds &= figure(f"{name}, median", median(times), "s", goal=GOAL, n=len(times), load=load())
        holds &= figure(f"{name}, longest", max(times), "s", goal=GOAL)
    holds &= figure("empty pages that a visitor saw meanwhile", empty, "pages", goal=0)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
