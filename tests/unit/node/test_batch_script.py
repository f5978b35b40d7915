"""The batch script does what its data document says, says why where it cannot, and leaves nothing secret behind."""

from __future__ import annotations

import ast
import base64
import errno
import json
import os
import stat
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from carme_hub.domain.cluster.end_mark import EndMark, end_mark

LAUNCH = Path(__file__).parents[3] / "carme_hub/node/batch_script.py"
SUPERVISE = LAUNCH.with_name("supervisor.py")
SINGLEUSER = LAUNCH.with_name("singleuser.py")
#: Programs that others load, and that nobody starts.
LOADED = ("memory", "minutes", "nvml", "usage")
PARTS = ("full_home", "end_report")
PROGRAMS = (
    LAUNCH,
    SUPERVISE,
    SINGLEUSER,
    *(LAUNCH.with_name(f"{name}.py") for name in ("steps", "srun", "rank", "report", *LOADED)),
    *(LAUNCH.parent / "batch_parts" / f"{name}.py" for name in PARTS),
)


class Node:
    """A compute node's part: it starts the batch script as slurmstepd does."""

    def __init__(self, home: Path) -> None:
        self.session = str(uuid.uuid4())
        self.folder = home / ".carme" / "sessions" / self.session
        self.document: dict[str, Any] = {
            "version": 1,
            "session": self.session,
            "session_folder": str(self.folder),
            "plan": {"argv": [sys.executable, "-c", "pass"], "environ": {"PATH": "/usr/bin"}, "supervise": "exec"},
            "files": {"carme-supervise": {"mode": 0o600, "text": SUPERVISE.read_text()}},
        }

    def environ(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        if "singleuser" in self.document:
            report = (LAUNCH.parent / "batch_parts/end_report.py").read_text()
            self.document["files"]["carme-end-report"] = {"mode": 0o600, "text": report}
            text = json.dumps(self.document["singleuser"])
            self.document["files"]["singleuser.json"] = {"mode": 0o600, "text": text}
        encoded = base64.b64encode(zlib.compress(json.dumps(self.document).encode())).decode()
        own = {"CARME_SESSION": self.session, "CARME_SESSION_FOLDER": str(self.folder), "CARME_DATA": encoded}
        return {"PATH": "/usr/bin", "SLURM_JOB_ID": "7", "HUB_SECRET": "x", **own, **more}

    def run(self, code: str = "", **plan: Any) -> int:
        if code:
            self.document["plan"]["argv"] = [sys.executable, "-c", code]
        self.document["plan"].update(plan)
        return subprocess.run([LAUNCH], env=self.environ(), timeout=120, check=False).returncode

    @property
    def log(self) -> str:
        return (self.folder / "job.log").read_text()

    @property
    def mark(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "end.json").read_text()))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_constant_programs_are_python_3_6_and_need_the_standard_library_only(program: Path) -> None:
    tree = ast.parse(program.read_text(), feature_version=(3, 6))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    assert "__future__" not in imported
    assert os.access(program, os.X_OK) or program.stem in ("supervisor", *LOADED, *PARTS)


def test_exit_status_and_end_mark_are_the_payloads(node: Node) -> None:
    assert node.run("import sys; print('hello'); sys.exit(7)") == 7
    assert "hello" in node.log
    assert node.mark["exit"] == 7
    assert node.mark["job"] == "7"
    assert end_mark(node.log, 7) == EndMark(7, 7)


def test_payload_killed_by_a_signal_gives_128_and_the_signal(node: Node) -> None:
    assert node.run("import os; os.kill(os.getpid(), 9)") == 137
    assert node.mark["exit"] == 137


def test_payload_gets_the_plans_environment_and_what_is_passed_and_nothing_else(node: Node) -> None:
    node.document["plan"].update(environ={"A": "1", "PATH": "/usr/bin"}, pass_env=["SLURM_JOB_ID", "NOT_SET"])
    assert node.run("import os, json; print('ENV' + json.dumps(dict(os.environ)))") == 0
    seen = json.loads(node.log.split("ENV")[1].splitlines()[0])
    seen.pop("LC_CTYPE", None)  # Python sets it by itself
    assert seen == {"A": "1", "PATH": "/usr/bin", "SLURM_JOB_ID": "7"}


def test_files_are_written_private_and_nothing_secret_is_left_at_the_end(node: Node) -> None:
    node.document["files"] |= {
        "tls.key": {"mode": 0o600, "text": "KEY"},
        "tool": {"mode": 0o700, "text": "#!/bin/sh\n"},
    }
    node.document["singleuser"] = {"nonce": "NONCE"}
    code = (
        "import os; [print('MODE', n, oct(os.stat(n).st_mode & 0o777)) for n in sorted(os.listdir('.'))];"
        "print('DATA', open('singleuser.json').read()); os.unlink('singleuser.json')"
    )
    assert node.run(code) == 0
    modes = dict(line.split()[1:] for line in node.log.splitlines() if line.startswith("MODE"))
    private = ["carme-end-report", "carme-supervise", "data.json", "job.log", "singleuser.json", "tls.key"]
    assert modes == {"tool": "0o700", **dict.fromkeys(private, "0o600")}
    assert '{"nonce": "NONCE"}' in node.log
    assert sorted(path.name for path in node.folder.iterdir()) == ["end.json", "job.log"]
    assert stat.S_IMODE(node.folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in node.folder.iterdir())


ASKS = "import os, socket; line = socket.socket(socket.AF_UNIX); line.connect('steps.sock'); line.recv(1)"


def test_carme_steps_begins_when_it_is_first_asked_and_may_end_what_it_has_begun(node: Node) -> None:
    code = (
        "import os, signal, socket, sys, time\n"
        "def end(*_):\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    print('steps end'); time.sleep(1); print('steps have ended', flush=True); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "listening = socket.socket(fileno=int(sys.argv[2])); listening.setblocking(True)\n"
        "while True:\n    line = listening.accept()[0]\n"
        "    print('steps of', sys.argv[1], os.path.getsize('carme-launch'), flush=True); line.send(b'.')"
    )
    node.document["files"] |= {"carme-steps": {"mode": 0o700, "text": code}}
    mode = "print('mode', oct(os.stat('steps.sock').st_mode & 0o777), flush=True)"
    assert node.run(f"import os, time; {mode}; time.sleep(0.3); print('asks', flush=True)\n{ASKS}\n{ASKS}") == 0
    steps = f"steps of {node.folder} {LAUNCH.stat().st_size}"
    assert node.log.splitlines()[:6] == ["mode 0o600", "asks", steps, steps, "steps end", "steps have ended"]
    assert sorted(path.name for path in node.folder.iterdir()) == ["end.json", "job.log"]


def test_carme_steps_that_nobody_asks_never_begins(node: Node) -> None:
    node.document["files"] |= {"carme-steps": {"mode": 0o700, "text": "print('steps begin', flush=True)"}}
    assert node.run("import time; time.sleep(0.3)") == 0
    assert "steps begin" not in node.log
    assert sorted(path.name for path in node.folder.iterdir()) == ["end.json", "job.log"]


def test_carme_steps_that_does_not_end_is_killed(node: Node) -> None:
    code = (
        "import os, signal, socket, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('is', os.getpid(), flush=True)\nlistening = socket.socket(fileno=int(sys.argv[2]))\n"
        "listening.setblocking(True); line = listening.accept()[0]; line.send(b'.'); time.sleep(60)"
    )
    node.document["files"] |= {"carme-steps": {"mode": 0o700, "text": code}}
    began = time.monotonic()
    assert node.run(ASKS) == 0
    assert 5 < time.monotonic() - began < 20
    assert not Path(f"/proc/{node.log.split()[1]}").exists()


def test_data_document_may_lie_in_the_session_folder(node: Node) -> None:
    node.folder.mkdir(parents=True, mode=0o755)
    (node.folder / "data.json").write_text(json.dumps(node.document))
    environ = node.environ()
    del environ["CARME_DATA"]
    assert subprocess.run([LAUNCH], env=environ, timeout=120, check=False).returncode == 0
    assert stat.S_IMODE(node.folder.stat().st_mode) == 0o700


def test_session_folder_that_is_a_link_is_refused(node: Node, tmp_path: Path) -> None:
    node.folder.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    node.folder.symlink_to(tmp_path / "elsewhere")
    assert node.run() == 70
    assert list((tmp_path / "elsewhere").iterdir()) == []


def break_version(document: dict[str, Any]) -> None:
    document["version"] = 2


def break_session(document: dict[str, Any]) -> None:
    document["session"] = "another"


def break_folder(document: dict[str, Any]) -> None:
    document["session_folder"] = "/tmp/another"


def break_plan(document: dict[str, Any]) -> None:
    document["plan"]["argv"] = []


def break_file_name(document: dict[str, Any]) -> None:
    document["files"] |= {"../x": {"mode": 0o600, "text": ""}}


def break_file_mode(document: dict[str, Any]) -> None:
    document["files"] |= {"x": {"mode": 0o644, "text": ""}}


def break_own_name(document: dict[str, Any]) -> None:
    document["files"] |= {"end.json": {"mode": 0o600, "text": ""}}


@pytest.mark.parametrize(
    "spoil",
    [break_version, break_session, break_folder, break_plan, break_file_name, break_file_mode, break_own_name],
)
def test_a_document_that_is_not_as_expected_ends_with_70(node: Node, spoil: Any) -> None:
    spoil(node.document)
    assert node.run() == 70
    assert node.mark["exit"] == 70
    assert not (node.folder / "data.json").exists()


def test_unreadable_document_is_not_quoted_in_the_log(node: Node) -> None:
    data = base64.b64encode(zlib.compress(b'{"token": "SECRET", ')).decode()
    done = subprocess.run([LAUNCH], env=node.environ({"CARME_DATA": data}), timeout=120, check=False)
    assert done.returncode == 70
    assert "SECRET" not in node.log


def test_missing_image_ends_with_71(node: Node) -> None:
    assert node.run(preflight=["/nowhere/image"]) == 71
    assert "/nowhere/image is not on this node" in node.mark["message"]


@pytest.mark.parametrize("plan", [{"argv": ["no-such-runtime"]}, {"preflight": ["/dev/no-such-device"]}])
def test_missing_runtime_ends_with_76(node: Node, plan: dict[str, Any]) -> None:
    assert node.run(**plan) == 76


def test_container_that_never_began_ends_with_84_and_the_runtimes_words_are_in_the_log(node: Node) -> None:
    node.document["singleuser"] = {"nonce": "n"}
    assert node.run("import sys; sys.exit('mount failed')") == 84
    assert "mount failed" in node.log


def test_bind_that_leads_outside_by_a_link_ends_with_72(node: Node, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "data").mkdir()
    (scratch / "trap").symlink_to("/etc")
    node.document["bind_roots"] = [str(scratch)]
    node.document["binds"] = [[str(scratch / "data"), "/data", "ro"]]
    assert node.run() == 0
    node.document["binds"] = [[str(scratch / "trap"), "/data", "ro"]]
    assert node.run() == 72
    assert "leads to /etc" in node.mark["message"]


def test_missing_bind_ends_with_72_unless_it_is_optional(node: Node, tmp_path: Path) -> None:
    node.document["bind_roots"] = [str(tmp_path)]
    node.document["binds"] = [[str(tmp_path / "gone"), "/data", "ro"]]
    assert node.run() == 72
    node.document["binds"] = [[str(tmp_path / "gone"), "/data", "ro", True]]
    assert node.run() == 0


def test_cleanup_runs_after_the_end_however_it_came(node: Node, tmp_path: Path) -> None:
    assert node.run("import sys; sys.exit(3)", cleanup=[["touch", str(tmp_path / "cleaned")], ["no-such-tool"]]) == 3
    assert (tmp_path / "cleaned").exists()


def test_too_much_output_leaves_its_end_only(node: Node) -> None:
    assert node.run("import sys; [print('x' * (1 << 20)) for _ in range(12)]; print('the end')") == 0
    assert (node.folder / "job.log").stat().st_size < 2 << 20
    assert node.log.splitlines()[-2] == "the end"


def test_a_folder_made_for_the_session_is_private_and_never_one_that_was_there(node: Node, tmp_path: Path) -> None:
    own = tmp_path / "carme-own"
    assert node.run(f"import os; print('MODE', oct(os.stat({str(own)!r}).st_mode))", node_folder=str(own)) == 0
    assert "MODE 0o40700" in node.log
    assert node.run("print('ran again')", node_folder=str(own)) == 70
    assert "carme-own cannot be used: File exists" in node.mark["message"]
    assert "ran again" not in node.log


def ended(node: Node, name: str, days: float, *, more: str = "") -> Path:
    """Return the folder of a session that ended some days ago."""
    folder = node.folder.parent / name
    folder.mkdir(parents=True)
    for file in ("job.log", "end.json", *filter(None, [more])):
        (folder / file).write_text("{}")
    then = time.time() - days * 86400
    os.utime(folder / "end.json", (then, then))
    return folder


def test_sessions_that_ended_more_than_thirty_days_ago_are_removed_and_no_younger_one(node: Node) -> None:
    old, young = ended(node, "old", 31), ended(node, "young", 29)
    running = node.folder.parent / "running"
    running.mkdir()
    (running / "job.log").write_text("")
    assert node.run() == 0
    assert not old.exists()
    assert sorted(path.name for path in young.iterdir()) == ["end.json", "job.log"]
    assert (running / "job.log").exists()
    assert node.mark["exit"] == 0


@pytest.mark.parametrize(("days", "left"), [(91, False), (89, True)])
def test_packages_of_a_session_whose_batch_script_was_killed_are_removed_after_ninety_days(
    node: Node, days: int, left: bool
) -> None:
    packages = node.folder.parent / "killed" / "packages" / "lib"
    packages.mkdir(parents=True)
    then = time.time() - days * 86400
    os.utime(packages.parents[1], (then, then))
    assert node.run() == 0
    assert packages.exists() is left


def test_packages_of_a_session_go_with_it_after_its_end_mark(node: Node) -> None:
    (node.folder / "packages" / "lib").mkdir(parents=True)
    killed = ended(node, "killed", 1)
    (killed / "packages").mkdir()
    assert node.run() == 0
    assert not (node.folder / "packages").exists()
    assert not (killed / "packages").exists()
    assert (killed / "end.json").exists()


def test_an_old_session_that_holds_anything_of_the_users_is_left_as_it_is(node: Node) -> None:
    kept = ended(node, "kept", 31, more="notes.txt")
    deep = ended(node, "deep", 31)
    (deep / "results" / "older").mkdir(parents=True)
    (deep / "results" / "older" / "end.json").write_text("{}")
    os.utime(deep / "results" / "older" / "end.json", (0, 0))
    assert node.run() == 0
    assert sorted(path.name for path in kept.iterdir()) == ["end.json", "job.log", "notes.txt"]
    assert (deep / "end.json").exists()
    assert (deep / "results" / "older" / "end.json").exists()


def test_links_beside_a_session_are_not_followed_when_old_ones_are_removed(node: Node, tmp_path: Path) -> None:
    away = ended(node, "away", 31).rename(tmp_path / "away")
    (node.folder.parent / "link").symlink_to(away)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    old = ended(node, "old", 31)
    (old / "job.log").unlink()
    (old / "job.log").symlink_to(precious)
    assert node.run() == 0
    assert sorted(path.name for path in away.iterdir()) == ["end.json", "job.log"]
    assert precious.read_text() == "mine"
    assert not old.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that is somebody else's")
def test_old_sessions_of_others_are_left_as_they_are(node: Node) -> None:
    theirs = ended(node, "theirs", 31)
    os.chown(theirs, 65534, 65534)
    assert node.run() == 0
    assert (theirs / "end.json").exists()


def test_old_sessions_that_cannot_be_removed_stop_no_session(node: Node) -> None:
    stuck, old = ended(node, "a-stuck", 31), ended(node, "old", 31)
    (stuck / "job.log").unlink()
    (stuck / "job.log").mkdir()
    (node.folder.parent / "stray").write_text("a file")
    assert node.run() == 0
    assert stuck.exists()
    assert not old.exists()


def test_a_quota_that_is_used_up_and_a_full_disk_are_no_space_and_a_home_that_is_away_is_that() -> None:
    spec = spec_from_file_location("launch_program", LAUNCH)
    assert spec is not None
    assert spec.loader is not None
    launch = module_from_spec(spec)
    spec.loader.exec_module(launch)
    codes = {number: launch.exit_code_of(OSError(number, "")) for number in (errno.EDQUOT, errno.ENOSPC, errno.ESTALE)}
    assert codes == {errno.EDQUOT: 79, errno.ENOSPC: 79, errno.ESTALE: 80}
