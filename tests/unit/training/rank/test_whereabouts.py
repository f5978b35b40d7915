"""A rank that does not go on says where it is, also where its code keeps Python's lock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.rank import whereabouts
from carme_hub.training.rank.whereabouts import Whereabouts, describe, stack_file

#: torch's module of collectives in as much as its path and names matter.
COLLECTIVES = """
import sys
def wrapper(call): return call()
def all_reduce(probe): return wrapper(lambda: probe(sys._getframe()))
"""


def load_batch(probe: Any) -> Any:
    return probe(sys._getframe())


def test_it_is_in_the_users_own_function() -> None:
    found = load_batch(describe)
    assert (found["function"], found["file"], found["waits"]) == ("load_batch", "test_whereabouts.py", False)
    assert found["line"] > 0


def test_it_waits_in_a_collective_that_the_users_code_has_called(tmp_path: Path) -> None:
    path = tmp_path / "site-packages/torch/distributed/distributed_c10d.py"
    path.parent.mkdir(parents=True)
    path.write_text(COLLECTIVES)
    names: dict[str, Any] = {}
    exec(compile(COLLECTIVES, str(path), "exec"), names)
    found = names["all_reduce"](describe)
    assert (found["function"], found["file"], found["waits"]) == ("all_reduce", "test_whereabouts.py", True)


class MainThreadThatIsForged:
    """Says how much processor time the main thread has used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpu = 0.0, 0.0
        monkeypatch.setattr(whereabouts, "_main_thread_seconds", lambda: self.cpu)
        monkeypatch.setattr(Whereabouts, "_arm", lambda _: None)


def test_a_rank_that_goes_on_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = MainThreadThatIsForged(monkeypatch)
    there = Whereabouts(tmp_path, 0, 1.0, lambda: main.now)
    for step in range(100):  # by its steps
        main.now += 1
        assert there.look(step) is None
    there = Whereabouts(tmp_path, 0, 1.0, lambda: main.now)
    for _ in range(100):  # by its work, where it reports no steps
        main.now, main.cpu = main.now + 1, main.cpu + 0.5
        assert there.look(None) is None
    assert not stack_file(tmp_path, 0).exists()


@pytest.mark.parametrize("step", [None, 7])
def test_a_rank_that_does_not_go_on_tells_where_it_is_and_writes_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int | None
) -> None:
    main = MainThreadThatIsForged(monkeypatch)
    there = Whereabouts(tmp_path, 3, 1.0, lambda: main.now)
    there.look(step)
    main.now = 62
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(there.look(step)), name="carme-heartbeat")
    thread.start()
    thread.join()
    assert (found[0]["seconds"], found[0]["file"]) == (62, "test_whereabouts.py")
    text = stack_file(tmp_path, 3).read_text()
    assert "Thread MainThread:" in text
    assert "test_a_rank_that_does_not_go_on" in text
    if step is not None:
        main.now = 63
        assert there.look(step + 1) is None


def test_a_rank_that_waits_for_nccl_with_a_busy_processor_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``loss.item()``: the main thread is in no collective, and works."""
    main = MainThreadThatIsForged(monkeypatch)
    newest = {"key": "nccl 0 default_pg", "number": 17, "done": False}
    monkeypatch.setattr(whereabouts, "newest_collectives", lambda: [dict(newest)])
    there = Whereabouts(tmp_path, 0, 1.0, lambda: main.now)
    found = []
    for second in range(60):
        main.now, main.cpu = main.now + 1, main.cpu + 1
        if second == 10:
            newest["number"] = 18  # it has gone on once more
        found.append(there.look(5))
    told = [each for each in found if each]
    assert 25 <= len(told) <= 35
    assert told[-1]["waits"]
    assert told[-1]["collectives"][0]["number"] == 18
    newest["done"] = True  # and so it goes on
    main.now, main.cpu = main.now + 1, main.cpu + 1
    assert there.look(5) is None


def test_code_that_keeps_pythons_lock_is_seen_by_the_watchdog(tmp_path: Path) -> None:
    """A real process whose heartbeat cannot run: its main thread never lets another one in."""
    code = (
        "import ctypes, sys, threading, time\n"
        "from pathlib import Path\n"
        "from carme_hub.training.rank import whereabouts\n"
        "whereabouts.WATCHDOG_SECONDS = 0.3\n"
        "there = whereabouts.Whereabouts(Path(sys.argv[1]), 0, 0.1)\n"
        "there.look(None)\n"
        "def keep_the_lock():\n"
        "    ctypes.PyDLL(None).usleep(900_000)\n"
        "keep_the_lock()\n"
        "there.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert "keep_the_lock" in (tmp_path / "stack-0.locked.txt").read_text()


def test_the_watchdog_leaves_no_empty_file(tmp_path: Path) -> None:
    there = Whereabouts(tmp_path, 0)
    there.look(None)
    time.sleep(0.01)
    there.close()
    assert list(tmp_path.iterdir()) == []
