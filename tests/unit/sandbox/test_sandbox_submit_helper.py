"""carme-submit hands sbatch what is on its list, writes the data where it may, and refuses everything else."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import zlib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.paths import share_folder
from carme_hub.slurm.submit.submitters import document

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SCRIPT = "#!/usr/bin/python3 -I\nprint()\n"


class Installed:
    """The helper in a folder of its own, a home, and an sbatch that notes what it got."""

    def __init__(self, tmp_path: Path, module: ModuleType) -> None:
        self.module, self.root, self.home = module, tmp_path, tmp_path / "home"
        self.folder = self.home / ".carme/sessions" / UUID
        self.answer = (
            '#!/bin/sh\nprintf \'%s\\n\' "$@" > "$0.argv"; cat > "$0.stdin"; env > "$0.env"; echo \'42;here\'\n'
        )
        self.settings()

    def settings(self, **more: object) -> None:
        sbatch = self.root / "sbatch"
        sbatch.write_text(self.answer)
        sbatch.chmod(0o755)
        found = {
            "sbatch": str(sbatch),
            "group": "carme-users",
            "slurm_conf": "/s.conf",
            "extra": ["constraint"],
            **more,
        }
        (self.root / "etc/carme-submit.json").write_text(json.dumps(found))

    def spec(self, **changes: Any) -> dict[str, Any]:
        good = JobSpec(
            name=f"carme-{UUID}",
            user="alice",
            script=SCRIPT,
            data=b"{}",
            session_folder=str(self.folder),
            gpus=Gpus("a100", 2),
            cpus=4,
            memory_mib=2048,
            time_limit=30,
            account="physics",
            environment={"CARME_SESSION": UUID},
        )
        found = json.loads(document(good))
        found["spec"].update(changes)
        result: dict[str, Any] = found
        return result

    def submit(self, found: object, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...] = ()) -> int:
        text = found if isinstance(found, bytes) else json.dumps(found).encode()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        code: int = self.module.main(list(arguments))
        return code

    @property
    def argv(self) -> list[str]:
        return (self.root / "sbatch.argv").read_text().splitlines()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    for name in ("libexec", "etc", "home"):
        (tmp_path / name).mkdir()
    program = tmp_path / "libexec/carme-submit"
    program.write_text((share_folder() / "libexec/carme-submit").read_text())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("carme_submit", str(program))
    module = ModuleType(loader.name)
    module.__file__ = str(program)
    loader.exec_module(module)
    alice = SimpleNamespace(pw_name="alice", pw_uid=os.getuid(), pw_dir=str(tmp_path / "home"), pw_shell="/bin/bash")
    monkeypatch.setattr(module, "OWNERS", (os.getuid(),))
    monkeypatch.setattr(module, "caller", lambda group: alice)
    return Installed(tmp_path, module)


def test_a_good_job_is_submitted_and_its_id_said(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    assert installed.submit(installed.spec(extra={"constraint": "fast"}), monkeypatch) == 0
    assert capsys.readouterr().out == "42\n"
    argv = installed.argv
    for wanted in ("--parsable", "--no-requeue", f"--job-name=carme-{UUID}", "--gres=gpu:a100:2", "--account=physics"):
        assert wanted in argv
    assert argv[0] == "--constraint=fast"  # the administrator's come first, so that ours win
    assert (installed.root / "sbatch.stdin").read_text() == SCRIPT
    data = installed.folder / "data.json"
    assert data.read_bytes() == b"{}"
    assert data.stat().st_mode & 0o777 == 0o600
    assert installed.folder.stat().st_mode & 0o777 == 0o700
    names = {line.partition("=")[0] for line in (installed.root / "sbatch.env").read_text().splitlines()}
    assert {"CARME_SESSION", "HOME", "SLURM_CONF"} <= names
    assert "LD_PRELOAD" not in names
    assert base64.b64encode(b"{}").decode() not in "".join(argv)


def test_a_booking_of_several_nodes_is_named_whole(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ",".join(f"carme-0123456789abcdef-{n}" for n in range(39))
    for reservation in ("course", names):
        assert installed.submit(installed.spec(reservation=reservation), monkeypatch) == 0, capsys.readouterr().err
        assert f"--reservation={reservation}" in installed.argv


def test_a_lowered_priority_reaches_sbatch(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.submit(installed.spec(nice=60), monkeypatch) == 0
    assert installed.argv[-1] == "--nice=60"
    assert installed.submit(installed.spec(), monkeypatch) == 0
    assert not any("nice" in word for word in installed.argv)
    assert installed.submit(installed.spec(nice=2**31), monkeypatch) == 1


def test_nodes_that_a_job_must_not_get_reach_sbatch(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.submit(installed.spec(exclude="gpu-1.site,gpu_2,n[3-4]"), monkeypatch) == 0
    assert "--exclude=gpu-1.site,gpu_2,n[3-4]" in installed.argv
    for wrong in ("-n1", "n1 n2", "n1\n", "/etc/nodes", "n1,./nodes"):
        assert installed.submit(installed.spec(exclude=wrong), monkeypatch) == 1, wrong


def test_the_only_node_that_a_job_may_get_reaches_sbatch(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.submit(installed.spec(node="gpu-1.site"), monkeypatch) == 0
    assert "--nodelist=gpu-1.site" in installed.argv
    for wrong in ("-n1", "n1,n2", "n1\n", "./nodes", "n[1-2]"):
        assert installed.submit(installed.spec(node=wrong), monkeypatch) == 1, wrong


def test_gpus_of_several_nodes_are_asked_for_node_by_node(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installed.submit(installed.spec(nodes=2, gpus={"type": "a100", "count": 4}), monkeypatch) == 0
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--gres=gpu:a100:2"} <= set(installed.argv)
    assert installed.submit(installed.spec(), monkeypatch) == 0
    assert {"--nodes=1", "--ntasks=1"} <= set(installed.argv)
    for wrong in ({"nodes": 3}, {"nodes": 0}, {"nodes": 1001}, {"nodes": "2"}, {"nodes": True}):
        assert installed.submit(installed.spec(**wrong), monkeypatch) == 1, wrong
    assert "nodes is not int" in capsys.readouterr().err


def test_a_second_submit_of_the_same_session_replaces_the_data(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed.submit(installed.spec(), monkeypatch) == 0
    assert installed.submit({**installed.spec(), "data": base64.b64encode(b"new").decode()}, monkeypatch) == 0
    assert (installed.folder / "data.json").read_bytes() == b"new"


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "bob"},
        {"user": "root"},
        {"name": "other"},
        {"name": f"carme-{UUID} --uid=0"},
        {"name": "carme-../../x"},
        {"session_folder": "/etc"},
        {"session_folder": f"/tmp/{UUID}"},
        {"session_folder": f"HOME/../{UUID}"},
        {"session_folder": f"HOME//{UUID}"},
        {"session_folder": "HOME/other"},
        {"session_folder": f"{UUID}"},
        {"script": "echo"},
        {"script": "#!/bin/sh\n#SBATCH --uid=root\n"},
        {"gpus": {"type": "2", "count": 1}},
        {"gpus": {"type": "", "count": 1}},
        {"gpus": {"type": "a100:1,gpu", "count": 1}},
        {"gpus": {"type": "a100", "count": "1"}},
        {"gpus": {"type": "a100", "count": True}},
        {"gpus": {"type": "a100", "count": -1}},
        {"gpus": {"type": "a100", "count": 1, "x": 1}},
        {"cpus": 0},
        {"cpus": "1"},
        {"cpus": True},
        {"memory_mib": -1},
        {"time_limit": 0},
        {"account": "--uid=0"},
        {"account": "a b"},
        {"account": "a\n"},
        {"partition": "-x"},
        {"qos": "a;b"},
        {"reservation": "a,b"},
        {"reservation": "carme-0123456789abcdef-0,course"},
        {"reservation": "carme-0123456789abcdef-0,"},
        {"reservation": ",".join(f"carme-0123456789abcdef-{n}" for n in range(100))},
        {"environment": {"LD_PRELOAD": "/x.so"}},
        {"environment": {"SLURM_CONF": "/x"}},
        {"environment": {"SBATCH_ACCOUNT": "x"}},
        {"environment": {"PATH": "/x"}},
        {"environment": {"BAD NAME": "x"}},
        {"environment": {"A": "x\0y"}},
        {"environment": {"A": 1}},
        {"extra": {"uid": "0"}},
        {"extra": {"wrap": "id"}},
        {"extra": {"output": "/etc/x"}},
        {"extra": {"nodelist": "node1"}},
        {"extra": {"constraint=x --uid": "0"}},
        {"extra": {"constraint": "a\n--uid=0"}},
        {"unknown": 1},
    ],
)
def test_whatever_is_not_on_the_list_is_refused(
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
) -> None:
    if "HOME" in str(changes.get("session_folder", "")):
        changes = {"session_folder": changes["session_folder"].replace("HOME", str(installed.home))}
    assert installed.submit(installed.spec(**changes), monkeypatch) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["error"]
    assert not (installed.root / "sbatch.argv").exists()
    assert not list(installed.home.rglob("data.json"))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"spec": {}, "data": ""}', b'{"spec": 1, "data": ""}', b"\xff"])
def test_a_document_that_is_none_is_refused(installed: Installed, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    assert installed.submit(text, monkeypatch) == 1


def test_an_argument_is_refused(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.submit(installed.spec(), monkeypatch, ("--uid=0",)) == 1


def test_a_configured_extra_never_overrides_what_is_fixed(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.settings(extra=["uid", "wrap", "output", "gres"])
    for name in ("uid", "wrap", "output", "gres"):
        assert installed.submit(installed.spec(extra={name: "x"}), monkeypatch) == 1


def test_only_configured_scripts_are_submitted(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.settings(scripts=[hashlib.sha256(SCRIPT.encode()).hexdigest()])
    assert installed.submit(installed.spec(), monkeypatch) == 0
    assert installed.submit(installed.spec(script=SCRIPT + "#"), monkeypatch) == 1


def test_no_link_below_the_home_is_followed(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = installed.root / "elsewhere"
    elsewhere.mkdir()
    (installed.home / ".carme").symlink_to(elsewhere)
    assert installed.submit(installed.spec(), monkeypatch) == 1
    assert not list(elsewhere.iterdir())


def test_a_data_file_that_is_a_link_is_replaced_not_followed(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = installed.root / "victim"
    victim.write_text("mine")
    installed.folder.mkdir(parents=True)
    (installed.folder / "data.json").symlink_to(victim)
    assert installed.submit(installed.spec(), monkeypatch) == 0
    assert victim.read_text() == "mine"


def test_session_folders_may_be_below_a_configured_root(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = installed.root / "scratch"
    scratch.mkdir()
    assert installed.submit(installed.spec(session_folder=f"{scratch}/alice/{UUID}"), monkeypatch) == 1
    installed.settings(roots=[str(scratch)])
    assert installed.submit(installed.spec(session_folder=f"{scratch}/alice/{UUID}"), monkeypatch) == 0


def test_what_sbatch_says_is_passed_on_as_not_known(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.answer = "#!/bin/sh\necho 'Socket timed out' >&2; exit 1\n"
    installed.settings()
    assert installed.submit(installed.spec(), monkeypatch) == 2
    assert json.loads(capsys.readouterr().err)["error"] == "Socket timed out"


def test_settings_that_others_can_write_are_not_believed(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    (installed.root / "etc/carme-submit.json").chmod(0o666)
    assert installed.submit(installed.spec(), monkeypatch) == 1


def test_the_program_runs_by_itself_and_refuses() -> None:
    done = subprocess.run([share_folder() / "libexec/carme-submit"], input="{}", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error" in json.loads(done.stderr)


def test_a_job_brings_its_data_itself_where_the_home_is_full(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(installed.module, "write_data", full)
    assert installed.submit(installed.spec(), monkeypatch) == 0
    assert capsys.readouterr().out == "42\n"
    [line] = [
        each for each in (installed.root / "sbatch.env").read_text().splitlines() if each.startswith("CARME_DATA=")
    ]
    assert zlib.decompress(base64.b64decode(line.partition("=")[2])) == b"{}"
