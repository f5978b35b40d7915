"""A companion's job is its session's with something else in it: no server, no secret, what keeps the nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_job_script import ALICE, IMAGE

from carme_hub.containers.registry import runtime
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.node import companion
from carme_hub.spawners.companions.script import KEEP, render_companion
from carme_hub.spawners.job_script import LAUNCH, NOBODY, RANK, Site, session_folder

SITE = Site(runtime("bubblewrap"), grace=2)
BIG = Request(
    "a100", "default", Gpus("a100", 4), cpus=3, memory_mib=2048, time_limit=30, account="physics", nodes=2, nice=5
)
PARENT = "11111111-2222-3333-4444-555555555555"
OWN = "66666666-7777-8888-9999-000000000000"


def document() -> dict[str, Any]:
    return dict(json.loads(render_companion(OWN, PARENT, ALICE, BIG, IMAGE, SITE).data))


def test_it_is_submitted_for_all_its_nodes() -> None:
    spec = render_companion(OWN, PARENT, ALICE, BIG, IMAGE, SITE)
    assert (spec.name, spec.nodes, spec.gpus, spec.gpus_per_node) == (
        f"carme-{OWN}",
        2,
        Gpus("a100", 4),
        Gpus("a100", 2),
    )
    assert (spec.cpus, spec.memory_mib, spec.time_limit, spec.account, spec.nice) == (3, 2048, 30, "physics", 5)
    assert spec.script == LAUNCH
    assert spec.session_folder == session_folder(ALICE, OWN)
    licensed = replace(SITE, licenses={"a100": "gpu_a100"})
    assert render_companion(OWN, PARENT, ALICE, BIG, IMAGE, licensed).extra["licenses"] == "gpu_a100:4"


def test_it_has_no_server_and_what_ranks_need() -> None:
    found = document()
    assert "singleuser" not in found
    assert set(found["files"]) == {"carme-keep", "carme-rank", "carme-launch", "carme-supervise", "carme-memory"}
    assert found["files"]["carme-rank"]["text"] == RANK
    assert found["files"]["carme-launch"]["text"] == LAUNCH
    assert found["files"]["carme-keep"] == {"mode": 0o700, "text": KEEP}
    folder = session_folder(ALICE, OWN)
    argv = ["/usr/bin/python3", "-IS", f"{folder}/carme-keep", session_folder(ALICE, PARENT)]
    assert found["plan"] == {"argv": argv, "supervise": "exec", "grace": SITE.grace}
    assert "@CARME_ARGV@" in found["rank"]["plan"]["argv"]
    # Its ranks have the packages that were installed in the session.
    assert found["rank"]["plan"]["environ"]["CARME_PACKAGES"] == f"{session_folder(ALICE, PARENT)}/packages"
    assert (found["session"], found["session_folder"]) == (OWN, folder)


def test_its_nodes_report_what_they_copy_and_have_what_proves_it() -> None:
    stage = {"in": [], "out": [{"source": "run", "target": "/data/r"}], "scratch_gib": 5, "run": "run1"}
    request, site = replace(BIG, stage=stage), replace(SITE, scratch="/scratch")
    tls = {"keyfile": "KEY", "certfile": "CERT", "cafile": "CA"}
    server = replace(NOBODY, callback="https://hub/api/carme/sessions/x/port", stage_nonce="N", tls=tls)
    spec = render_companion(OWN, PARENT, ALICE, request, IMAGE, site, server)
    found = json.loads(spec.data)
    proofs = {name: f"{session_folder(ALICE, OWN)}/tls.{name}" for name in ("key", "ca")}
    proofs["cert"] = f"{session_folder(ALICE, OWN)}/tls.crt"
    assert found["stage"]["report"] == {
        "url": "https://hub/api/carme/sessions/x/stage",
        "nonce": "N",
        "proofs": proofs,
    }
    assert found["stage"]["below"] == "run1"
    assert found["files"]["tls.key"] == {"mode": 0o600, "text": "KEY"}
    assert spec.extra["comment"] == f"carme-stage {OWN} 5"
    assert "singleuser" not in found


def waits_for(pid: int, number: int) -> bool:
    """Return whether a process catches or ignores a signal (proc(5)); before, any ends it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt", "SigIgn"))]
    return any(mask >> number - 1 & 1 for mask in masks)


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    """The program at work in a folder of its own, beside its session's."""
    for name in ("own", "session"):
        (tmp_path / name).mkdir()
    program = tmp_path / "own/carme-keep"
    program.write_text(KEEP.replace("POLL_INTERVAL = 2.0", "POLL_INTERVAL = 0.05"))
    argv = [sys.executable, "-IS", str(program), str(tmp_path / "session")]
    process = subprocess.Popen(argv, cwd=tmp_path / "own")
    end = time.monotonic() + 30
    while not (waits_for(process.pid, signal.SIGTERM) and waits_for(process.pid, signal.SIGUSR1)):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    yield process, tmp_path
    process.kill()
    process.wait()


@pytest.mark.parametrize("mark", ["session/end.json", "own/release"])
def test_it_lets_the_nodes_go_when_its_session_has_ended_or_it_is_told_to(kept: Any, mark: str) -> None:
    process, folder = kept
    (folder / mark).touch()
    assert process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_the_warning_before_the_time_limit_does_not(kept: Any, number: int) -> None:
    process, _ = kept
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(10) == 0


def test_a_session_folder_that_cannot_be_seen_ends_nothing(kept: Any) -> None:
    process, folder = kept
    (folder / "session").rmdir()
    time.sleep(0.3)
    assert process.poll() is None


def test_it_asks_for_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert companion.main([]) == companion.main(["relative"]) == 2
    assert "folder" in capsys.readouterr().err
