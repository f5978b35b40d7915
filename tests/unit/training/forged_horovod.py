"""A package ``horovod`` with what ours touches of the real one, whose ranks meet by files; and code that uses it.

What is real in tests with it: the conductor, its rendezvous, the workers' processes, and how they find their places.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": "",
    "common/__init__.py": "",
    "common/basics.py": """
class HorovodBasics:
    up = False
    def init(self, comm=None, process_sets=None):
        self.up = True
    def is_initialized(self):
        return self.up
    def shutdown(self):
        self.up = False
""",
    "common/elastic.py": """
class Manager:
    def __init__(self):
        self._listeners, self._service = set(), None
    def register_listener(self, one):
        self._listeners.add(one)
notification_manager = Manager()
""",
    "runner/__init__.py": "",
    "runner/elastic/__init__.py": "",
    "runner/elastic/worker.py": """
class HostUpdateResult:
    removed, mixed = 1, 3
""",
}
#: Takes ``steps`` steps with whoever is there, fewer where a file says that it is enough, and commits each of them;
#: ``stumble(step)`` may raise.
CELL = """
import json, os, time
from pathlib import Path
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import notification_manager
from carme_hub.training import here

class Lost(Exception):
    pass

class State:
    news = 0
    def on_hosts_updated(self, number, how):
        assert how == 3, "Horovod would leave out state.sync()"
        self.news = max(self.news, number)

def train(steps, stumble=lambda step: None):
    folder, state, basics = Path(os.environ["CARME_RUN_FOLDER"]), State(), HorovodBasics()
    notification_manager.register_listener(state)
    kept = folder / "kept"
    seen = (folder / f"seen-{os.getpid()}.jsonl").open("a", buffering=1)
    basics.init()
    step = int(kept.read_text()) if kept.exists() else 0
    while step < steps:
        generation = notification_manager._service.assignment.generation
        me = folder / f"worker-{generation}-{here.rank}"
        if not me.exists():
            me.with_suffix(".new").write_text(str(os.getpid()))
            me.with_suffix(".new").replace(me)
        try:
            stumble(step)
            seen.write(json.dumps({"step": step + 1, "rank": here.rank, "size": here.size}) + chr(10))
            said = "-1" if (folder / "enough").exists() else str(state.news)
            wanted = meet(folder / f"meet-{generation}-{step}", said, generation)
        except Lost:
            wanted = str(generation + 1)
        else:
            step += 1
            if here.rank == 0:
                kept.with_suffix(".new").write_text(str(step))
                kept.with_suffix(".new").replace(kept)
        if wanted == "-1":
            break
        if int(wanted) > generation:
            basics.shutdown()
            basics.init()
            step = int(kept.read_text()) if kept.exists() else 0
    return step, here.rank, here.size

def gone(worker):
    # Of one that is slow, or has not come yet, this is False.
    if not worker.exists():
        return False
    try:
        return Path("/proc", worker.read_text(), "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True

def meet(place, said, generation):
    mine = place.with_name(f"{place.name}-{here.rank}")
    mine.with_name(mine.name + ".new").write_text(said)
    mine.with_name(mine.name + ".new").replace(mine)
    end, paths = time.monotonic() + 20, [place.with_name(f"{place.name}-{rank}") for rank in range(here.size)]
    while not all(path.exists() for path in paths):
        lost = [rank for rank in range(here.size) if gone(place.with_name(f"worker-{generation}-{rank}"))]
        if any(not paths[rank].exists() for rank in lost) or time.monotonic() > end:
            raise Lost
        time.sleep(0.01)
    time.sleep(0.03)
    return paths[0].read_text()
"""


def write(folder: Path) -> Path:
    """Write the package into a folder, and return what has to be on the path."""
    for name, text in FILES.items():
        path = folder / "horovod" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
