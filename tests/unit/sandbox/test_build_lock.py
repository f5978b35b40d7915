"""What is built once is built by one process at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from carme_hub.sandbox.build_lock import locked


def test_a_second_builder_waits_for_the_first_and_others_do_not(tmp_path: Path) -> None:
    order: list[str] = []

    def build(name: str, kind: str) -> None:
        with locked(tmp_path, kind):
            order.append(f"{name} begins")
            time.sleep(0.1)
            order.append(f"{name} ends")

    with locked(tmp_path, "image"):
        builders = [threading.Thread(target=build, args=(name, "image")) for name in ("a", "b")]
        for each in builders:
            each.start()
        build("other", "slurm")
        assert order == ["other begins", "other ends"]
    for each in builders:
        each.join()
    assert [line.split()[1] for line in order] == ["begins", "ends"] * 3
