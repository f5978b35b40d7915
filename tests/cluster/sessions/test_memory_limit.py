"""A sandbox confines no memory: there a session and its ranks lose their largest process before others lose theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab

#: Takes more than the session has, in a process that says so at once.
TAKES = "kept = [b'x' * (256 << 20) for _ in range(12)]"


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("bob")
    found = Lab(site, "bob", gpus=1, cpus=2, memory_gib=2, time_minutes=30)
    found.check("%load_ext carme_hub.training")
    yield found
    found.stop()


def log(lab: Lab) -> str:
    folder = lab.check("import os; print(os.environ['CARME_SESSION_FOLDER'])").strip()
    return (Path(folder) / "job.log").read_text()


def test_a_rank_that_takes_too_much_ends_its_run_and_not_its_session(lab: Lab) -> None:
    cell = (
        f"%%distributed -n 2 --gpus-per-task 0\nimport time\nfrom carme_hub.training import here\nif here.rank: {TAKES}"
    )
    output = lab.run(f"{cell}\ntime.sleep(60)", timeout=60)
    assert output.errors
    assert lab.check("print('the kernel is here')") == "the kernel is here\n"
    state = lab.newest_run()
    assert state["error"]["type"] == "OutOfMemory", state
    assert state["message"].startswith("Rank 1 on node"), state
    assert "was killed because the memory of its job was used up (limit 2 GiB)." in state["message"]


def test_a_kernel_that_takes_too_much_is_started_again_and_the_log_says_why(lab: Lab) -> None:
    hub, kernel = lab.hub, lab.hub.new_kernel("bob")
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"no end after|connection closed"):
        hub.run_cell("bob", kernel, f"{TAKES}\nimport time; time.sleep(60)", limit=20)
    assert time.monotonic() - began < 40
    said = "of its 2.00 GiB of memory on this node, so its largest process was killed: python"
    wait_for(lambda: said in log(lab), 10, "the log to say why")
    wait_for(lambda: _answers(hub, kernel), 60, "the kernel to be started again")
    assert lab.check("print('the other kernel is here')") == "the other kernel is here\n"


def _answers(hub: Hub, kernel: str) -> bool:
    try:
        return hub.run_cell("bob", kernel, "print('again')", limit=10) == "again\n"
    except AssertionError:
        return False
