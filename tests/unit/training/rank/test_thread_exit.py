"""Whoever ends lets the threads of libraries finish, and does not wait for ever."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from carme_hub.training.rank import thread_exit

# Its thread works without the interpreter, as one of a library, and then asks for it.
WORKING = """
import hashlib, sys, threading, time
{first}
def work():
    hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})
    open(sys.argv[1], "w").write("finished")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.01)
"""


def ended(tmp_path: Path, first: str, rounds: int = 300_000) -> tuple[bool, float]:
    """Return whether the thread finished, and the seconds it took."""
    file = tmp_path / "file"
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", WORKING.format(first=first, rounds=rounds), str(file)], check=True)
    return file.exists() and file.read_text() == "finished", time.monotonic() - began


# The limit is for a thread that never rests; this one may need longer than that where others have the processors.
@pytest.mark.parametrize(
    "first",
    [
        "from carme_hub.training.rank import thread_exit; thread_exit.LIMIT = 60; thread_exit.install()",
        "from carme_hub.training import here; from carme_hub.training.rank import thread_exit; thread_exit.LIMIT = 60",
    ],
)
def test_a_thread_that_works_is_waited_for(tmp_path: Path, first: str) -> None:
    assert ended(tmp_path, first)[0]


def test_without_it_the_thread_is_cut_off(tmp_path: Path) -> None:
    assert not ended(tmp_path, "")[0]  # else the test above shows nothing


def test_a_thread_that_never_rests_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    first = "from carme_hub.training.rank import thread_exit; thread_exit.LIMIT = 0.2; thread_exit.install()"
    finished, took = ended(tmp_path, first, 200_000_000)
    assert not finished
    assert took < 20


def test_resting_threads_cost_nothing() -> None:
    assert thread_exit.wait_for_threads()
