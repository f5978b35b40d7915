"""carme-token gives the hub a user's token, for ordinary users of one group, and nothing by any trick."""

from __future__ import annotations

import base64
import grp
import hashlib
import hmac
import json
import os
import pwd
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from carme_hub.paths import share_folder

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
PEOPLE = {"root": (0, 0), "daemon": (1, 1), "alice": (2001, 2001), "mallory": (2002, 2002), "nobody": (65534, 65534)}
GROUP, GROUP_ID = "carme-users", 3000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Alice's home, with one session that has a log."""
    folder = tmp_path / "home/alice"
    session = folder / ".carme/sessions" / UUID
    session.mkdir(parents=True)
    (session / "job.log").write_text("x" * 5000 + "the end\n")
    return folder


@pytest.fixture
def helper(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The helper, installed in a folder of its own, on a machine where alice is in the group and mallory is not."""
    for name in ("libexec", "etc"):
        (tmp_path / name).mkdir()
    program = tmp_path / "libexec/carme-token"
    program.write_text((share_folder() / "libexec/carme-token").read_text())
    program.chmod(0o755)
    key = tmp_path / "etc/key"
    key.write_bytes(b"k" * 64)
    key.chmod(0o600)
    settings = tmp_path / "etc/carme-token.json"
    settings.write_text(json.dumps({"jwt_key": str(key), "group": GROUP, "lifespan": 300}))
    settings.chmod(0o644)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader = SourceFileLoader("carme_token", str(program))
    module = ModuleType(loader.name)
    module.__file__ = str(program)
    loader.exec_module(module)
    sys.dont_write_bytecode = before

    def getpwnam(name: str) -> SimpleNamespace:
        known = name.lower()  # some directories do not tell Alice from alice
        uid, gid = PEOPLE[known]
        return SimpleNamespace(pw_name=known, pw_uid=uid, pw_gid=gid, pw_dir=str(home))

    def getgrnam(name: str) -> SimpleNamespace:
        if name != GROUP:
            raise KeyError(name)
        return SimpleNamespace(gr_gid=GROUP_ID)

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(grp, "getgrnam", getgrnam)
    groups = {"mallory": [2002], "alice": [2001, GROUP_ID]}
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: groups.get(name, [gid, GROUP_ID]))
    monkeypatch.setattr(module, "become", lambda entry: None)
    return module


def _part(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def test_the_token_is_signed_for_the_user_and_short_lived(
    helper: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert helper.main(["token", "alice"]) == 0
    head, body, signature = capsys.readouterr().out.strip().split(".")
    claims = _part(body)
    assert _part(head)["alg"] == "HS256"
    assert claims["sun"] == "alice"
    assert abs(int(str(claims["iat"])) - time.time()) < 5
    assert int(str(claims["exp"])) - int(str(claims["iat"])) == 300
    expected = hmac.new(b"k" * 64, f"{head}.{body}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "=") == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["token", "root"],
        ["token", "daemon"],
        ["token", "nobody"],
        ["token", "mallory"],
        ["token", "Alice"],
        ["token", "nosuch"],
        ["token", "0"],
        ["token", "-h"],
        ["token", "--"],
        ["token", ""],
        ["token", "alice\nroot"],
        ["token", "alice root"],
        ["token", 'alice","sun":"root'],
        ["token", "../alice"],
        ["token", "alice", "root"],
        ["token"],
        ["TOKEN", "alice"],
        ["alice"],
        [],
        ["tail", "alice"],
        ["tail", "mallory", UUID],
        ["tail", "root", UUID],
        ["tail", "alice", UUID, "x"],
        ["tail", "alice", ".."],
        ["tail", "alice", f"../sessions/{UUID}"],
        ["tail", "alice", UUID.upper()],
        ["tail", "alice", f"{UUID}\n"],
        ["tail", "alice", "11111111-1111-1111-1111-111111111111"],
    ],
)
def test_every_trick_is_refused_with_a_sentence(
    helper: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert helper.main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("carme-token: ")
    assert said.err.count("\n") == 1 or "\n" in "".join(arguments)


def test_a_key_that_others_can_read_is_not_used(helper: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "etc/key").chmod(0o640)
    assert helper.main(["token", "alice"]) == 1


def test_settings_that_others_can_write_are_not_believed(helper: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "etc/carme-token.json").chmod(0o666)
    assert helper.main(["token", "alice"]) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"jwt_key": 1, "group": "g"}', '{"jwt_key": "/k", "group": ""}'])
def test_settings_that_make_no_sense_end_in_a_message(
    helper: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "etc/carme-token.json").write_text(text)
    assert helper.main(["token", "alice"]) == 1
    assert "carme-token.json" in capsys.readouterr().err


@pytest.mark.parametrize("life", [0, -1, 3601, True, "300", 1.5])
def test_a_token_never_lives_long(helper: ModuleType, tmp_path: Path, life: object) -> None:
    settings = {"jwt_key": str(tmp_path / "etc/key"), "group": GROUP, "lifespan": life}
    (tmp_path / "etc/carme-token.json").write_text(json.dumps(settings))
    assert helper.main(["token", "alice"]) == 1


def _of_alice(helper: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of whoever runs the tests count as alice's."""
    monkeypatch.setitem(PEOPLE, "alice", (os.getuid() or 2001, 2001))
    real = os.fstat

    def fstat(descriptor: int) -> SimpleNamespace:
        status = real(descriptor)
        uid = PEOPLE["alice"][0] if status.st_uid == os.getuid() else status.st_uid
        return SimpleNamespace(st_uid=uid, st_mode=status.st_mode, st_size=status.st_size)

    monkeypatch.setattr(helper, "settings", lambda: ("", GROUP, 300))
    monkeypatch.setattr(helper.os, "fstat", fstat)


def test_tail_prints_the_last_4_kib(helper: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _of_alice(helper, monkeypatch)
    read = SimpleNamespace(data=b"")
    monkeypatch.setattr(
        sys, "stdout", SimpleNamespace(buffer=SimpleNamespace(write=lambda d: setattr(read, "data", d)))
    )
    assert helper.main(["tail", "alice", UUID]) == 0
    assert len(read.data) == 4096
    assert read.data.endswith(b"the end\n")


def test_tail_follows_no_link(helper: ModuleType, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _of_alice(helper, monkeypatch)
    session = home / ".carme/sessions" / UUID
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (session / "job.log").unlink()
    (session / "job.log").symlink_to(secret)
    assert helper.main(["tail", "alice", UUID]) == 1
    (session / "job.log").unlink()
    (session / "job.log").mkdir()
    assert helper.main(["tail", "alice", UUID]) == 1
    (session / "job.log").rmdir()
    os.mkfifo(session / "job.log")
    assert helper.main(["tail", "alice", UUID]) == 1  # and does not hang
    (session / "job.log").unlink()
    elsewhere = tmp_path / "elsewhere"
    session.rename(elsewhere)
    (elsewhere / "job.log").write_text("of another session")
    session.symlink_to(elsewhere)
    assert helper.main(["tail", "alice", UUID]) == 1


def test_the_program_runs_by_itself_and_refuses_root() -> None:
    done = subprocess.run([share_folder() / "libexec/carme-token", "token", "root"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "carme-token:" in done.stderr
