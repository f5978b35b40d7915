"""The command of rolling updates: errors by line, the keeper of commands, and what is shown without a hub."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest
from forged_update_site import Site

from carme_hub.cli.nodes import site_command
from carme_hub.cli.nodes.check import CheckApp, InstallCheckApp
from carme_hub.cli.nodes.plan_file import read_plan
from carme_hub.cli.nodes.progress_file import ProgressFolder
from carme_hub.cli.nodes.update import UpdateApp
from carme_hub.domain.nodes import progress as steps
from carme_hub.errors import ConfigError

PLAN = """\
title: New driver
wait: 8h
command:
  argv: [ssh, "{node}", update]
groups:
  - name: rack1
    nodes: n[1-2]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


def run(app: type, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    command = app()

    def initialize_and_start() -> None:
        command.initialize([*argv])
        command.start()

    with pytest.raises(SystemExit) as ended:
        initialize_and_start()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out + output.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("wait: 8h", "wait: soon", "line 2: wait: give a time with its unit"),
        ("nodes: n[1-2]", "nodes: n[1-", "line 7: groups[0].nodes: give nodes as Slurm writes them"),
        ("    nodes: n[1-2]", "    knodes: n1", "line 7: groups[0].knodes: unknown key. Did you mean nodes?"),
        ("argv: [ssh", "argv: [7", "line 4: command.argv: each word is a text"),
        ("wait: 8h", "wait: [8h", "line 3 is not YAML"),
        ("wait: 8h", "title: Again", "line 2: title is there already, in line 1."),
        ("title: New driver\n", "", "line 1: title: it is missing"),
        ("wait: 8h", "until: 2026-13-45", "a time"),
    ],
)
def test_an_error_in_a_plan_names_its_line(plan: Path, old: str, new: str, message: str) -> None:
    plan.write_text(PLAN.replace(old, new, 1))
    with pytest.raises(ConfigError, match=r"plan\.yaml") as error:
        read_plan(plan, "UTC")
    assert message in str(error.value)


def test_a_plan_that_is_not_there_or_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(tmp_path / "none.yaml", "UTC")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ConfigError, match="a plan has keys with values"):
        read_plan(tmp_path / "list.yaml", "UTC")


def ended(folder: Path, argv: list[str], limit: int = 20) -> site_command.Ended:
    site_command.start(folder, argv, limit, {"NODE": "n1"})
    until = time.monotonic() + 30
    while (found := site_command.ended(folder)) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def test_the_keeper_keeps_output_and_end_and_hides_the_hubs_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "canary")
    code = "import os; print(os.environ['NODE'], os.environ.get('JUPYTERHUB_API_TOKEN')); os.write(2, b'ERR\\n')"
    assert ended(tmp_path / "a", [sys.executable, "-c", code]).problem == ""
    assert sorted((tmp_path / "a" / "output").read_text().split()) == ["ERR", "None", "n1"]
    assert (tmp_path / "a" / "output").stat().st_mode & 0o777 == 0o600
    assert ended(tmp_path / "b", ["/nonexistent/program"]).problem.startswith("failed: it cannot be started:")
    assert ended(tmp_path / "c", [sys.executable, "-c", "raise SystemExit('no\\x1b[31m disk')"]).problem == (
        "ended with 1: no [31m disk"
    )
    assert ended(tmp_path / "d", ["sh", "-c", "kill -9 $$"]).problem == "was ended by signal 9"


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = ended(tmp_path / "a", ["sh", "-c", f"(sleep 3; touch {mark}) & yes & sleep 60"], 1)
    assert found.problem == "failed: it did not end within 1 s, and was ended"
    assert (tmp_path / "a" / "output").stat().st_size <= 10_000_000
    time.sleep(2.5)
    assert not mark.exists()


def test_a_command_of_which_nothing_is_known_is_not_taken_for_done(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not site_command.was_started(tmp_path / "a")
    (tmp_path / "a" / "lock").touch()
    found = site_command.ended(tmp_path / "a")
    assert found is not None
    assert "it is not known how far it came" in found.problem


def test_the_status_is_shown_without_a_hub(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(UpdateApp, capsys, str(plan), "--status")
    assert (code, "no update of" in said) == (2, True)
    store = ProgressFolder(Path(f"{plan}.update"))
    assert store.lock()
    store.write(steps.begin(read_plan(plan, "UTC"), 1.0))
    code, said = run(UpdateApp, capsys, str(plan), "--status")
    assert (code, "New driver. 2 nodes: 2 waiting." in said, "rack1" in said) == (1, True, True)
    code, said = run(UpdateApp, capsys, str(plan), "--status", "--json")
    assert [one["node"] for one in json.loads(said)["nodes"]] == ["n1", "n2"]
    assert store.path.stat().st_mode & 0o777 == 0o700
    assert not ProgressFolder(store.path).lock(), "one process at a time"
    (store.path / "progress.json").write_text("{")
    code, said = run(UpdateApp, capsys, str(plan), "--status")
    assert (code, "cannot be read" in said) == (2, True)
    store.unlock()


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_progress_that_others_can_have_made_up_is_not_gone_on_with(tmp_path: Path, mode: int) -> None:
    (tmp_path / "update").mkdir()
    (tmp_path / "update").chmod(mode)
    with pytest.raises(ConfigError, match="must be a folder of yours that others cannot enter"):
        ProgressFolder(tmp_path / "update").lock()
    (tmp_path / "update").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "update")
    with pytest.raises(ConfigError, match="must be a folder of yours"):
        ProgressFolder(tmp_path / "link").lock()
    assert list((tmp_path / "update").iterdir()) == []


def test_contradictions_on_the_command_line_are_refused(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(UpdateApp, capsys, str(plan), "--status", "--abort")[0] == 2
    code, said = run(UpdateApp, capsys, str(plan), "--hub", "http://127.0.0.1:9", "--yes")
    assert (code, "token" in said) == (2, True)


def test_the_check_runs_by_hand_here_or_as_the_plan_says(plan: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (plan.parent / "health.conf").write_text(
        "[memory]\nsize = none\n[disks]\nfull =\nwritable =\n[slurm]\nscontrol = /bin/false\n"
    )
    code, said = run(CheckApp, capfd, "--settings", str(plan.parent / "health.conf"))
    assert (code, "unknown: Slurm does not answer" in said) == (2, True)
    code, said = run(CheckApp, capfd, "n1", "--plan", str(plan))
    assert (code, "has no check" in said) == (2, True)
    plan.write_text(PLAN + 'check:\n  argv: [sh, -c, "echo seen; test {node} = n1"]\n')
    code, said = run(CheckApp, capfd, "n1", "n2", "--plan", str(plan))
    assert (code, "n1: well" in said, "n2: not well (exit status 1)" in said) == (1, True, True)
    code, said = run(CheckApp, capfd, "n9", "--plan", str(plan))
    assert (code, "n9: not in" in said) == (2, True)


def test_the_check_is_written_for_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(InstallCheckApp, capsys, str(tmp_path / "opt"))
    assert code == 0
    assert f"HealthCheckProgram={tmp_path}/opt/carme-node-health" in said
    assert (tmp_path / "opt" / "carme-nvml").exists()


async def test_two_that_end_an_update_end_it_once(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site", "n1")
    site.hub.occupy("n1", "alice")
    update = site.update(site.plan())
    running = asyncio.create_task(update.run())
    await asyncio.sleep(0.1)
    site.store.abort()
    assert {one.stage.value for one in (await running).nodes.values()} == {"waiting"}
    assert site.store.aborted
    site.store.clear_abort()
    site.store.clear_abort()
    assert not site.store.aborted
