"""How long after a server's death its visitors read that it has ended, with Slurm answering and with Slurm silent.

Runs as ``python benchmarks/ended.py`` (about four minutes, as root); prints one JSON object a line. The server's
process gets KILL while a person's browser has the lab open; from then on its page is asked for again and again. There
is no peer: what ends a server of JupyterHub's own is seen by a poll, every 30 seconds at its defaults.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from ground import need_root, sandbox
from measure import figure, load, median, say

from carme_hub.sandbox.demo import Demo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from rig.faults import server_process
from rig.hub import Hub, wait_for
from rig.truth import Truth

GOAL = 1.0
PAUSE, PATIENCE = 0.02, 60.0
TOLD = ("Your server has ended", "Your last session ended")


def told_after(hub: Hub, user: str, *, silent: bool) -> tuple[float, int]:
    """Kill a user's server; return after how many seconds a visitor is told, and how many pages before had no words."""
    hub.start_server(user, profile="cpu")
    person, truth, path = hub.login(user), Truth(hub), f"/user/{user}/lab"
    assert person.get(path).status == 200
    session = truth.row(user).id
    if silent:
        hub.cluster.freeze("slurmctld")
    try:
        os.kill(server_process(session), signal.SIGKILL)
        began, wordless = time.monotonic(), 0
        while not any(words in (text := str(person.get(path).body)) for words in TOLD):
            wordless += not text.strip()
            if time.monotonic() > began + PATIENCE:
                raise SystemExit(f"Nobody is told after {PATIENCE:g} s")
            time.sleep(PAUSE)
        took = time.monotonic() - began
    finally:
        if silent:
            hub.cluster.thaw("slurmctld")
    wait_for(lambda: not truth.session(session).open, 120, "the session to be closed")
    return took, wordless


def main() -> int:
    """Measure, print the figures and return 0 where every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--keep", action="store_true", help="keep the sandbox for the next run")
    asked = parser.parse_args()
    need_root()
    found: dict[bool, list[float]] = {False: [], True: []}
    empty = 0
    with sandbox("ended", 4, keep=asked.keep) as where:
        hub = Hub(Demo.prepare(where, say))
        hub._progress = say  # stdout is for figures
        hub.start()
        for number in range(asked.rounds):
            for silent in (False, True):
                took, wordless = told_after(hub, "bob", silent=silent)
                found[silent].append(took)
                empty += wordless
                say(f"round {number + 1}, Slurm {'silent' if silent else 'answering'}: {took:.2f} s")
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
