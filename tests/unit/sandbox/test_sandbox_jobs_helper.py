"""carme-jobs runs the commands on its list, reads regular files within bounds, and refuses everything else."""

from __future__ import annotations

import io
import json
import os
import pwd
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from carme_hub.paths import share_folder

PROGRAM = share_folder() / "libexec/carme-jobs"
SCRIPT = "#!/bin/sh\n#SBATCH --mem=1G\necho $1\n"


class Helper:
    """The helper in a folder of its own, and commands of Slurm that note what they got."""

    def __init__(self, tmp_path: Path, module: ModuleType) -> None:
        self.module, self.root = module, tmp_path
        for name in ("sbatch", "scontrol", "scancel"):
            program = tmp_path / "bin" / name
            program.write_text(
                '#!/bin/sh\nprintf \'%s\\n\' "$@" > "$0.argv"; env > "$0.env"\n'
                'for each; do case "$each" in /proc/self/fd/*) cat "$each" > "$0.script";; esac; done; echo 42\n'
            )
            program.chmod(0o755)
        found = {"sbatch": f"{tmp_path}/bin/sbatch", "slurm_conf": "/s.conf", "group": "carme-users"}
        (tmp_path / "etc/carme-submit.json").write_text(json.dumps(found))

    def ask(self, request: object, user: str = "alice") -> subprocess.CompletedProcess[bytes]:
        """Run it in a child, since it may become another program."""
        document = request if isinstance(request, bytes) else json.dumps({"user": user, **request}).encode()  # type: ignore[dict-item]
        text = (
            "import os, sys\nfrom types import SimpleNamespace\nfrom importlib.machinery import SourceFileLoader\n"
            "from types import ModuleType\n"
            f"loader = SourceFileLoader('carme_jobs', {str(self.root / 'libexec/carme-jobs')!r})\n"
            "sys.dont_write_bytecode = True\nmodule = ModuleType(loader.name)\n"
            f"module.__file__ = {str(self.root / 'libexec/carme-jobs')!r}\nloader.exec_module(module)\n"
            "module.OWNERS = (os.getuid(),)\n"
            f"module.caller = lambda group: SimpleNamespace(pw_name='alice', pw_dir={str(self.root)!r}, pw_shell='')\n"
            "sys.exit(module.main([]))\n"
        )
        return subprocess.run([sys.executable, "-c", text], input=document, capture_output=True, timeout=60)

    def argv(self, name: str) -> list[str]:
        return (self.root / "bin" / f"{name}.argv").read_text().splitlines()

    def nothing_ran(self) -> bool:
        return not list((self.root / "bin").glob("*.argv"))


def loaded(path: Path) -> ModuleType:
    loader = SourceFileLoader("carme_jobs", str(path))
    module = ModuleType(loader.name)
    module.__file__ = str(path)
    loader.exec_module(module)
    return module


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    for name in ("libexec", "etc", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "libexec/carme-jobs").write_text(PROGRAM.read_text())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Helper(tmp_path, loaded(tmp_path / "libexec/carme-jobs"))


@pytest.mark.parametrize(
    "words",
    [
        ["scancel", "9"],
        ["scancel", "9_[3-5,8]"],
        ["scontrol", "hold", "9_3"],
        ["scontrol", "release", "9"],
        ["scontrol", "requeue", "9"],
        ["scontrol", "update", "JobId=9_3", "TimeLimit=30"],
        ["scontrol", "write", "batch_script", "9", "-"],
    ],
)
def test_commands_of_the_list_run_with_a_clean_environment(helper: Helper, words: list[str]) -> None:
    done = helper.ask({"run": words})
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr
    assert helper.argv(words[0]) == words[1:]
    environ = (helper.root / "bin" / f"{words[0]}.env").read_text()
    assert "SLURM_CONF=/s.conf" in environ
    assert "VIRTUAL_ENV" not in environ


@pytest.mark.parametrize(
    "words",
    [
        [],
        "scancel 9",
        ["sh", "-c", "id"],
        ["scancel", "--user=bob"],
        ["scancel", "9", "10"],
        ["scancel", "-u"],
        ["scancel", "9\n"],
        ["scontrol", "hold", "jobname=x"],
        ["scontrol", "update", "JobId=9", "TimeLimit=0"],
        ["scontrol", "update", "JobId=9", "TimeLimit=+10"],
        ["scontrol", "update", "JobId=9", "Priority=1"],
        ["scontrol", "update", "NodeName=n1", "State=down"],
        ["scontrol", "write", "batch_script", "9", "/home/alice/.bashrc"],
        ["scontrol", "hold", 9],
        ["../scancel", "9"],
    ],
)
def test_other_commands_do_not_run(helper: Helper, words: Any) -> None:
    done = helper.ask({"run": words})
    assert (done.returncode, done.stdout) == (64, b"")
    assert json.loads(done.stderr)["error"]
    assert helper.nothing_ran()


def test_a_script_is_submitted_with_its_options_and_arguments(helper: Helper) -> None:
    asked = {
        "options": {"mem": "2G", "requeue": "", "job-name": "my näme"},
        "arguments": ["a b", "c"],
        "script": SCRIPT,
    }
    done = helper.ask({"submit": asked})
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr
    argv = helper.argv("sbatch")
    assert argv[:4] == ["--parsable", "--mem=2G", "--requeue", "--job-name=my näme"]
    assert argv[-2:] == ["a b", "c"]
    assert (helper.root / "bin/sbatch.script").read_text() == SCRIPT


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"uid": "0"}},
        {"options": {"wrap": "id"}},
        {"options": {"export-file": "/etc/passwd"}},
        {"options": {"mem": "1\n--uid=0"}},
        {"options": {"mem": 1}},
        {"options": {"job-name": ""}},
        {"options": {"requeue": "x"}},
        {"options": []},
        {"script": "echo"},
        {"script": "#!/bin/sh\0"},
        {"arguments": "a"},
        {"arguments": ["a\0"]},
        {"more": 1},
    ],
)
def test_other_options_and_what_is_no_script_are_refused(helper: Helper, changes: dict[str, Any]) -> None:
    done = helper.ask({"submit": {"options": {}, "arguments": [], "script": SCRIPT, **changes}})
    assert (done.returncode, done.stdout) == (64, b"")
    assert helper.nothing_ran()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"user": "alice"}',
        b'{"user": "alice", "run": ["scancel", "9"], "file": {}}',
        b'{"user": "bob", "run": ["scancel", "9"]}',
    ],
)
def test_a_document_that_is_none_or_for_somebody_else_is_refused(helper: Helper, document: bytes) -> None:
    assert helper.ask(document).returncode == 64
    assert helper.nothing_ran()


def test_parts_of_a_file_are_sent_with_what_it_is(helper: Helper) -> None:
    path = helper.root / "out.txt"
    path.write_bytes(b"0123456789")
    about, _, rest = helper.ask({"file": {"path": str(path), "offset": -4, "length": 100}}).stdout.partition(b"\n")
    assert rest == b"6789"
    said = json.loads(about)
    assert (said["size"], said["offset"], said["length"], said["inode"]) == (10, 6, 4, path.stat().st_ino)
    rest = helper.ask({"file": {"path": str(path), "offset": 2, "length": 3}}).stdout.partition(b"\n")[2]
    assert rest == b"234"
    rest = helper.ask({"file": {"path": str(path), "offset": 99, "length": 3}}).stdout.partition(b"\n")[2]
    assert rest == b""


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "missing", "link to a device"])
def test_only_regular_files_are_read_and_nothing_waits(helper: Helper, kind: str) -> None:
    path = helper.root / "out"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path = Path("/dev/zero")
        case "link to a device":
            path.symlink_to("/dev/zero")
    began = time.monotonic()
    done = helper.ask({"file": {"path": str(path), "offset": 0, "length": 10}})
    assert (done.returncode, done.stdout) == (64, b"")
    assert json.loads(done.stderr)["reason"] == ("missing" if kind == "missing" else "not-regular")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "asked",
    [
        {"path": "out", "offset": 0, "length": 1},
        {"path": "/x\0", "offset": 0, "length": 1},
        {"path": "/x", "offset": 0, "length": (1 << 30) + 1},
        {"path": "/x", "offset": "0", "length": 1},
        {"path": "/x", "offset": 0},
        {"path": "/x", "find": "a", "most": 1001},
        {"path": "/x", "find": "a\n", "most": 1},
    ],
)
def test_requests_beyond_the_bounds_are_refused(helper: Helper, asked: dict[str, Any]) -> None:
    assert helper.ask({"file": asked}).returncode == 64


def test_lines_are_found_in_any_case_the_last_ones_with_their_place(helper: Helper) -> None:
    path = helper.root / "out.txt"
    path.write_text("one\nError: a\ntwo\nerror: b\nlast ERROR")
    found = json.loads(helper.ask({"file": {"path": str(path), "find": "error", "most": 2}}).stdout)
    assert (found["count"], found["searched_from"]) == (3, 0)
    assert found["lines"] == [{"at": 17, "text": "error: b"}, {"at": 26, "text": "last ERROR"}]


def test_a_long_file_is_searched_from_its_end_and_a_line_without_an_end_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = loaded(PROGRAM)
    module.SEARCHED, module.PART = 100, 16  # type: ignore[attr-defined]
    path = tmp_path / "out.txt"
    path.write_bytes(b"needle early\n" + b"x" * 150 + b"\nneedle\n" + b"y" * 40 + b"\n")
    out = io.BytesIO()
    module.send({"path": str(path), "find": "needle", "most": 9}, out)
    found = json.loads(out.getvalue())
    assert (found["count"], found["searched_from"]) == (1, path.stat().st_size - 100)
    at = found["lines"][0]["at"]
    assert path.read_bytes()[at : at + 6] == b"needle"


def test_settings_that_others_can_write_are_not_believed(helper: Helper) -> None:
    (helper.root / "etc/carme-submit.json").chmod(0o666)
    assert helper.ask({"run": ["scancel", "9"]}).returncode == 64
    assert helper.nothing_ran()


def test_the_program_runs_by_itself_and_refuses() -> None:
    done = subprocess.run([PROGRAM], input="{}", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (64, "")
    assert "error" in json.loads(done.stderr)
    assert subprocess.run([PROGRAM, "x"], input="{}", capture_output=True, text=True).returncode == 64


def test_the_hub_starts_its_text_as_the_user_and_names_sbatch(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("hello")
    user = pwd.getpwuid(os.getuid()).pw_name
    asked = json.dumps({"user": user, "file": {"path": str(path), "offset": 0, "length": 9}})
    argv = ["/usr/bin/python3", "-I", "-S", "-c", PROGRAM.read_text()]
    done = subprocess.run(argv, input=asked, env={"CARME_SBATCH": "/x/sbatch"}, capture_output=True, text=True)
    assert done.stdout.partition("\n")[2] == "hello", done.stderr
