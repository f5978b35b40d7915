"""What the sandbox is made of: nodes, settings, users; and what it refuses before it touches anything."""

from __future__ import annotations

import io
import json
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from carme_hub.cli.sandbox import SandboxApp
from carme_hub.errors import SandboxError
from carme_hub.sandbox import Sandbox, people
from carme_hub.sandbox.demo import Demo, run_demo, usage_text
from carme_hub.sandbox.layout import Layout, default_state
from carme_hub.sandbox.privilege import check_parents
from carme_hub.sandbox.slurm import release
from carme_hub.sandbox.slurm.associations import associations_file
from carme_hub.sandbox.slurm.files import job_submit
from carme_hub.sandbox.slurm.hardware import make_devices, virtual_nodes
from carme_hub.sandbox.slurm.ports import Ports
from carme_hub.sandbox.slurm.settings import Settings
from carme_hub.sandbox.status import NodeStatus, ProcessStatus, Status


def _settings(nodes: int = 4) -> Settings:
    layout = Layout.at(Path("/var/lib/x"))
    return Settings(layout, Ports.block(1000), virtual_nodes(nodes), "slurm", "root", "hush")


def test_the_first_four_nodes_differ_and_the_rest_are_like_the_first() -> None:
    assert [n.gres for n in virtual_nodes(6)] == [
        "gpu:a100:4,shard:16",
        "gpu:a100:4,shard:16",
        "gpu:1g.10gb:7,gpu:3g.40gb:2",
        "gpu:h100:4",
        "gpu:a100:4,shard:16",
        "gpu:a100:4,shard:16",
    ]


@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_sandbox_has_one_to_64_nodes(count: int) -> None:
    with pytest.raises(SandboxError, match="1 to 64"):
        virtual_nodes(count)


def test_every_device_has_a_file_and_a_number_of_its_own(tmp_path: Path) -> None:
    for node in virtual_nodes(4):
        make_devices(tmp_path, node)
        make_devices(tmp_path, node)  # again changes nothing
    files = list(tmp_path.rglob("nvidia*"))
    assert len(files) == 4 + 4 + 9 + 4
    numbers = [f.stat().st_rdev for f in files if not f.is_symlink()]
    assert len(set(numbers)) == len(numbers)
    text = _settings().gres_conf()
    assert "NodeName=node3 Name=gpu Type=3g.40gb File=/var/lib/x/dev/node3/nvidia[7-8]" in text


def test_settings_keep_the_promises_that_need_them() -> None:
    text = _settings().slurm_conf()
    for line in (
        "SlurmdTimeout=900",
        "DisableRootJobs=YES",
        "PrivateData=jobs,usage,users,accounts,reservations",
        "AccountingStorageEnforce=associations,limits,qos,safe",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        "JobSubmitPlugins=lua",
        "Licenses=gpu_1g.10gb:7,gpu_3g.40gb:2,gpu_a100:8,gpu_h100:4",
    ):
        assert line in text.splitlines()
    assert "PrivateData=jobs,usage,users,accounts,reservations" in _settings().slurmdbd_conf().splitlines()
    assert "hush" not in text
    assert "bind-address=127.0.0.1" in _settings().database_conf()
    assert "MessageTimeout=5" in _settings().slurm_conf(message_timeout=5)


def test_the_lua_gets_the_default_type() -> None:
    assert 'local DEFAULT_GPU_TYPE = "a100"' in job_submit("a100")
    assert "local DEFAULT_GPU_TYPE = nil" in job_submit(None)


def test_the_books_name_everybody_once_for_each_account() -> None:
    text = associations_file("carme-hub", {"alice": ("physics", "teaching"), "tina": ("teaching",)})
    assert text.count("User - 'alice':DefaultAccount='physics'") == 2
    assert "User - 'tina':Coordinator='teaching':DefaultAccount='teaching'" in text
    assert "User - 'carme-hub':DefaultAccount='root':AdminLevel='Operator'" in text


@pytest.mark.parametrize("path", ["/var/lib/a b", "/var/lib/a,b", "/var/lib/ü", "/sandbox", "/x/" + "y" * 80])
def test_a_state_folder_that_slurm_or_sudo_would_misread_is_refused(path: str) -> None:
    with pytest.raises(SandboxError):
        Sandbox(Path(path))


def test_a_state_folder_below_a_private_one_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(SandboxError, match="cannot pass"):
        check_parents(tmp_path / "state")


def test_a_stranger_of_the_same_name_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwnam(name: str) -> SimpleNamespace:
        if name == "alice":
            return SimpleNamespace(pw_gecos="Alice Liddell,,,")
        raise KeyError(name)

    def never(*argv: str, **_more: object) -> None:
        raise AssertionError(argv)

    monkeypatch.setattr(people, "REGISTER", tmp_path / "register.json")
    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(people, "_run", never)
    with pytest.raises(SandboxError, match="alice exist"):
        people.claim(tmp_path)
    assert not (tmp_path / "register.json").exists()


def test_the_users_stay_while_another_sandbox_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register = tmp_path / "register.json"
    (tmp_path / "other").mkdir()
    register.write_text(json.dumps({"claims": [str(tmp_path / "mine"), str(tmp_path / "other")], "passwords": {}}))
    monkeypatch.setattr(people, "REGISTER", register)
    monkeypatch.setattr(people, "_run", lambda *argv, **more: pytest.fail(str(argv)))
    assert people.release(tmp_path / "mine") == []
    assert json.loads(register.read_text())["claims"] == [str(tmp_path / "other")]


def test_only_known_releases_are_built() -> None:
    with pytest.raises(SandboxError, match=r"Only 24\.11"):
        release.build("23.02", print)


def test_without_a_sandbox_status_says_down_and_down_does_nothing(short_path: Path) -> None:
    sandbox = Sandbox(short_path / "s")
    assert "down" in sandbox.status().text()
    sandbox.down()
    sandbox.reset()
    assert not (short_path / "s").exists()
    with pytest.raises(SandboxError, match="sandbox up"):
        sandbox.facts()


def test_status_says_virtual_and_names_what_crashed() -> None:
    status = Status(
        "/s",
        "22.05.8",
        False,
        (ProcessStatus("munged", "running", 7, 1.0), ProcessStatus("slurmctld", "crashed")),
        (NodeStatus("node1", "idle", (("a100", 4),)),),
        ("slurmctld",),
    )
    assert "4 × a100 (virtual GPUs)" in status.text()
    assert "Crashed: slurmctld" in status.text()
    assert status.document()["crashed"] == ["slurmctld"]


def _cli(*words: str) -> int:
    app = SandboxApp()
    app.initialize(list(words))
    try:
        with pytest.raises(SystemExit) as end:
            app.start()
    finally:
        type(app.subapp).clear_instance()
    code = end.value.code
    return code if isinstance(code, int) else 0


@pytest.mark.parametrize(("folder", "named"), [("", ""), ("x", " --state")])
def test_the_demo_ends_with_commands_for_this_sandbox_and_no_other(
    folder: str, named: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = short_path / folder if folder else default_state()
    demo = SimpleNamespace(
        url="http://127.0.0.1:8000",
        cluster=SimpleNamespace(layout=Layout.at(state), passwords={"alice": "hush"}, rootless=False),
        log=state / "log/hub.log",
    )
    monkeypatch.setattr(sys, "argv", ["/opt/bin/carme-hub"])
    lines = usage_text(demo).splitlines()  # type: ignore[arg-type]
    for verb in ("status", "down", "reset"):
        command = f"/opt/bin/carme-hub sandbox {verb}" + (f"{named} {state}" if named else "")
        assert any(line.endswith(f" {command}") for line in lines), lines


@pytest.mark.parametrize(("rootless", "wanted"), [(False, {"CARME_SANDBOX_FOLDERS": "1"}), (True, {})])
def test_a_demo_has_shared_folders_where_root_can_make_them(
    rootless: bool, wanted: dict[str, str], short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    demo = SimpleNamespace(
        cluster=SimpleNamespace(rootless=rootless), start=lambda _progress, more: started.append(more)
    )
    monkeypatch.setattr(Demo, "prepare", lambda _sandbox, _progress: demo)
    run_demo(Sandbox(short_path), print)
    assert started == [wanted]


def test_what_a_sandbox_advises_names_its_state_folder(short_path: Path) -> None:
    state = short_path / "s"
    with pytest.raises(SandboxError, match=rf"`carme-hub sandbox up --state {state}`"):
        Sandbox(state).facts()
    crashed = Status(
        str(state), "22.05.8", rootless=False, processes=(ProcessStatus("hub", "crashed"),), crashed=("hub",)
    )
    assert f"`carme-hub sandbox up --state {state}` starts them again" in crashed.text()


def test_reset_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO("no\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert _cli("reset", "--state", str(tmp_path / "s")) == 1
    assert "Nothing was removed" in capsys.readouterr().out


def test_status_as_json_is_one_document(short_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _cli("status", "--json", "--state", str(short_path / "s")) == 0
    assert json.loads(capsys.readouterr().out)["up"] is False


def test_an_error_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert _cli("up", "--state", "/x y/z") == 1
    assert capsys.readouterr().err.startswith("carme-hub sandbox: The state folder")
