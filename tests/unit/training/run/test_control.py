"""A conductor answers its own user's processes, and knows who looks on."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.run import control
from carme_hub.training.run.control import (
    ControlServer,
    NoConductor,
    RequestFolder,
    RequestRefused,
    Subscription,
    ask,
    ask_by_file,
)


class Conducted:
    """What a conductor says: a state for each thing that is put in, to the end."""

    def __init__(self, path: Path) -> None:
        self.states: list[dict[str, Any]] = []
        self.counts: list[int] = []
        self.changed = threading.Condition()
        self.there = ControlServer(path, self.answer, self.follow, self.count)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "resize":
            raise RequestRefused("It has a fixed number of ranks.")
        return {"said": request}

    def say(self, state: str) -> None:
        with self.changed:
            self.states.append({"state": state})
            self.changed.notify_all()

    def follow(self) -> Iterator[dict[str, Any]]:
        for number in range(100):
            with self.changed:
                self.changed.wait_for(lambda: len(self.states) > number, 5)  # noqa: B023  called at once
                said = self.states[number]  # what it waits for at last is said when the test ends
            yield said
            if said["state"] == "finished":
                return

    def count(self, count: int) -> None:
        with self.changed:
            self.counts.append(count)
            self.changed.notify_all()

    def wait(self, counts: list[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.counts == counts, 5), self.counts


@pytest.fixture
def conducted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Conducted]:
    monkeypatch.setattr(control, "folder", lambda: tmp_path)
    found = Conducted(control.socket_path("run"))
    yield found
    found.say("finished")
    found.there.close()


def test_a_question_is_answered_and_what_will_not_be_done_says_why(conducted: Conducted) -> None:
    assert ask("run", {"op": "stop", "why": 1}) == {"said": {"op": "stop", "why": 1}}
    with pytest.raises(RequestRefused, match="a fixed number"):
        ask("run", {"op": "resize"})
    with pytest.raises(RequestRefused, match="not understood: KeyError"):
        ask("run", {"why": "no op"})
    with pytest.raises(NoConductor, match="No conductor of other answers"):
        ask("other", {"op": "stop"})


@pytest.fixture
def asked_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(control, "FILE_INTERVAL", 0.02)
    run = tmp_path / "run"
    run.mkdir()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "resize":
            raise RequestRefused("It has a fixed number of ranks.")
        return {"said": request}

    there = RequestFolder(run, answer)
    yield run
    there.close()
    assert list(run.iterdir()) == []


def test_another_session_asks_by_a_file_and_hears_the_same(asked_by_files: Path) -> None:
    for number in range(3):
        assert ask_by_file(asked_by_files, {"op": "stop", "why": number}) == {"said": {"op": "stop", "why": number}}
    with pytest.raises(RequestRefused, match="a fixed number"):
        ask_by_file(asked_by_files, {"op": "resize"})
    with pytest.raises(RequestRefused, match="not understood: KeyError"):
        ask_by_file(asked_by_files, {"why": "no op"})
    folder = asked_by_files / control.REQUESTS
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_what_was_asked_long_ago_or_is_no_request_is_not_done(asked_by_files: Path) -> None:
    folder = asked_by_files / control.REQUESTS
    folder.mkdir(mode=0o700)
    for name, text, age in (("old", '{"op": "stop"}', control.FILE_TIMEOUT + 1), ("odd", "{", 0), ("list", "[]", 0)):
        (folder / name).write_text(text)
        os.utime(folder / name, (time.time() - age,) * 2)
        (folder / name).rename(folder / f"{name}.json")
    assert ask_by_file(asked_by_files, {"op": "state"}) == {"said": {"op": "state"}}
    end = time.monotonic() + 20
    while {path.name for path in folder.iterdir()} != {"list.answer", "odd.answer"}:  # nobody waits for them
        assert time.monotonic() < end, list(folder.iterdir())
        time.sleep(0.02)
    assert "not understood" in (folder / "odd.answer").read_text()


def test_a_conductor_that_does_not_answer_is_no_conductor_that_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match=r"did not answer within 0 s and may still do it"):
        ask_by_file(tmp_path, {"op": "stop"}, 0.2)
    assert list((tmp_path / control.REQUESTS).iterdir()) == []
    with pytest.raises(NoConductor):
        ask_by_file(tmp_path / "deleted", {"op": "stop"}, 0.2)


def test_only_its_user_reaches_it(conducted: Conducted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conducted.there.path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(control, "_peer", lambda link: os.getuid() + 1)
    with pytest.raises(NoConductor):
        ask("run", {"op": "state"}, timeout=5)


@pytest.mark.parametrize("come", [lambda: ask("ending", {"op": "state"}), lambda: Subscription("ending")])
def test_who_comes_as_a_conductor_ends_is_told_so(come: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    reached = control._connect

    def reached_as_it_ends(run: str, timeout: float) -> socket.socket:
        with socket.socket(socket.AF_UNIX) as listener:
            path = control.socket_path(run)
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(1)
            return reached(run, timeout)

    monkeypatch.setattr(control, "_connect", reached_as_it_ends)
    with pytest.raises(NoConductor, match="The conductor of ending ended before it answered"):
        come()


def test_who_looks_on_hears_all_and_is_counted(conducted: Conducted) -> None:
    with Subscription("run") as one, Subscription("run"):
        conducted.wait([1, 2])
        for state in ("running", "finished"):
            conducted.say(state)
        assert [each["state"] for each in one] == ["running", "finished"]
    conducted.there.drain(5)
    conducted.wait([1, 2, 1, 0])


def test_whoever_is_killed_looks_on_no_more(conducted: Conducted) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(conducted.there.path))
        link.sendall(json.dumps({"op": "follow"}).encode() + b"\n")
        conducted.wait([1])
    conducted.wait([1, 0])


def test_a_line_without_end_is_no_request(conducted: Conducted, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(conducted.there.path))
        link.sendall(b"x" * control.MAX_LINE)
        link.settimeout(5)
        assert b"not understood" in link.recv(1000)


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "Path", lambda _: tmp_path / "runs")
    assert control.folder().stat().st_mode & 0o777 == 0o700
    (tmp_path / "runs").chmod(0o755)
    with pytest.raises(PermissionError, match="not a private folder of yours"):
        control.folder()
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        control.folder()
