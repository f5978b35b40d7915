"""JupyterHub's own tests get ports that the kernel gives to no program that runs beside them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
#: As pytest loads it: before JupyterHub's modules.
CODE = """
import json
import hub_suite.ports
from jupyterhub import objects, orm
from jupyterhub.tests import mocking
print(json.dumps([module.random_port() for module in (mocking, orm, objects) for _ in range(20)]))
"""


def ports_given() -> list[int]:
    argv = [sys.executable, "-W", "ignore", "-c", CODE]
    done = subprocess.run(argv, env={"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_each_is_another_one_below_those_that_the_kernel_gives() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = ports_given()
    assert len(set(found)) == 60
    assert max(found) < lowest


def test_one_that_is_taken_is_not_given() -> None:
    from hub_suite import ports

    following = ports.FIRST + (ports.chosen_port() + 1 - ports.FIRST) % ports.COUNT
    with socket.socket() as taken:
        taken.bind(("", following))
        assert ports.chosen_port() != following
