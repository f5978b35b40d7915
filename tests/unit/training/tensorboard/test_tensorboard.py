"""What TensorBoard shows, when it looks, and what its form says; without TensorBoard, which the images have."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.run.run_folder import root
from carme_hub.training.tensorboard import files, server
from carme_hub.training.tensorboard.files import Choice, NoFolder, choice_of_form, folders_of, runs, runs_folder
from carme_hub.training.tensorboard.server import Follower, MultiplexerProxy, Pages

SHARE = Path(__file__).parents[4] / "share/carme_hub/apps"


class BoardThatNotes:
    """In place of TensorBoard's multiplexer."""

    def __init__(self) -> None:
        self.added: dict[str, str] = {}
        self.reloads = 0

    def AddRun(self, path: str, name: str) -> None:
        self.added[path] = name

    def Reload(self) -> None:
        self.reloads += 1


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CARME_SESSION", "this")
    monkeypatch.setattr(server, "HERE", tmp_path / "here")
    (tmp_path / "here").mkdir()
    for kind in ("js", "html"):
        (tmp_path / f"here/carme-tensorboard.{kind}").write_text((SHARE / f"tensorboard.{kind}").read_text())
    return tmp_path


def made(name: str, began: int, *, session: str = "this", rank: int = 0) -> Path:
    """Make a run with one file of events."""
    run = runs_folder() / name
    (run / f"tb/rank{rank}").mkdir(parents=True)
    (run / "asked.json").write_text(json.dumps({"session": session}))
    file = run / f"tb/rank{rank}/events.out.tfevents.{began}.node1.7.0"
    file.write_text("x")
    return file


def test_the_runs_lie_where_distributed_keeps_them() -> None:
    assert runs_folder() == root()


def test_the_newest_run_is_the_one_that_began_last_in_this_session() -> None:
    assert runs() == []
    assert folders_of(Choice()) == {}
    made("old", 100)
    made("new", 300)
    made("elsewhere", 400, session="other")
    (runs_folder() / "silent/tb").mkdir(parents=True)  # has written no event
    assert runs() == ["new", "old"]
    assert runs(ever=True) == ["elsewhere", "new", "old"]
    assert list(folders_of(Choice())) == ["new"]
    assert list(folders_of(Choice("all"))) == ["new", "old"]
    assert list(folders_of(Choice("ever"))) == ["elsewhere", "new", "old"]
    assert folders_of(Choice("run", "old")) == {"old": runs_folder() / "old/tb"}


def test_a_name_that_is_used_again_in_this_session_is_shown() -> None:
    made("hello", 100, session="other")
    made("kept", 200, session="other")
    assert runs() == []
    shutil.rmtree(runs_folder() / "hello")
    made("hello", 300)
    assert runs() == ["hello"]


def test_a_choice_is_checked(home: Path) -> None:
    made("old", 100)
    (home / "logs").mkdir()
    assert choice_of_form({}) == choice_of_form({"show": "nonsense"}) == Choice("newest")
    assert choice_of_form({"show": "run", "run": "old"}) == Choice("run", "old")
    assert choice_of_form({"show": "folder", "folder": "logs"}) == choice_of_form(
        {"show": "folder", "folder": "~/logs"}
    )
    assert choice_of_form({"show": "folder", "folder": str(home / "logs")}) == Choice("folder", str(home / "logs"))
    for fields in ({"show": "run", "run": "../x"}, {"show": "folder"}, {"show": "folder", "folder": "nowhere"}):
        with pytest.raises(NoFolder):
            choice_of_form(fields)


def test_the_follower_reads_only_when_something_was_written() -> None:
    board = MultiplexerProxy(BoardThatNotes)
    follower = Follower(board)
    assert not follower.step(whole=True)
    assert follower.status_text().startswith("No run has written")
    file = made("one", 100)
    assert follower.step(whole=True)
    assert board.added == {str(runs_folder() / "one/tb/rank0"): "one/rank0"}
    assert not follower.step(whole=True)
    assert not follower.step(whole=False)
    file.write_text("xy")
    assert follower.step(whole=False)
    assert (board.reloads, follower.news) == (2, 2)
    first = board.current
    made("two", 200)
    assert follower.step(whole=True)
    assert follower.status_text() == "Showing run two, the newest"
    assert board.current is not first  # nothing of the old run is left
    assert list(board.added.values()) == ["two/rank0"]


def test_all_runs_grow_without_being_read_anew() -> None:
    board = MultiplexerProxy(BoardThatNotes)
    follower = Follower(board)
    made("one", 100)
    follower.choose(Choice("all"))
    follower.step(whole=True)
    first = board.current
    made("two", 200)
    follower.step(whole=True)
    assert board.current is first
    assert sorted(board.added.values()) == ["one/rank0", "two/rank0"]
    assert follower.status_text() == "Showing all runs of this session: 2"
    follower.choose(Choice("run", "one"))
    follower.step(whole=True)
    assert board.current is not first


def test_what_is_chosen_is_said_to_be_shown_when_it_is_there_to_be_seen(home: Path) -> None:
    words: list[str] = []

    class BoardThatListens(BoardThatNotes):
        def Reload(self) -> None:
            words.append(follower.status_text())

    follower = Follower(MultiplexerProxy(BoardThatListens))
    made("one", 100)
    made("two", 200)
    follower.step(whole=True)
    for choice in (Choice("all"), Choice("folder", str(home / ".carme/runs/one/tb")), Choice("run", "two")):
        before = follower.status_text()
        follower.choose(choice)
        assert follower.status_text() == before
        follower.step(whole=True)
        assert words[-1] == before
        assert follower.status_text() != before
    follower.choose(Choice("newest"))  # the same run
    assert follower.step(whole=True)
    assert follower.status_text() == "Showing run two, the newest"
    follower.error = "/x cannot be read"  # and what was shown before is chosen again
    assert follower.step(whole=True)
    assert follower.status_text() == "Showing run two, the newest"


def test_who_waits_is_told_within_a_second_and_nobody_is_told_of_nothing() -> None:
    file = made("one", 100)
    follower = Follower(MultiplexerProxy(BoardThatNotes))
    follower.start()
    seen = follower.wait(0, 5)
    assert seen == 1
    assert follower.wait(seen, 0.6) == seen
    waits = []
    for text in ("xy", "xyz", "xyzz"):
        heard: list[float] = []
        thread = threading.Thread(target=lambda h=heard, s=seen: h.append(follower.wait(s, 5) and time.monotonic()))
        thread.start()
        time.sleep(0.1)
        wrote = time.monotonic()
        file.write_text(text)
        thread.join()
        waits.append(heard[0] - wrote)
        seen = follower.news
    assert max(waits) < 1, waits
    assert seen == 4


def test_a_folder_that_cannot_be_read_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(MultiplexerProxy(BoardThatNotes))
    ways = [OSError(5, "Input/output error", "/scratch/x")]

    def step(*, whole: bool) -> bool:
        if ways:
            raise ways.pop()
        return bool(whole and Follower.step(follower, whole=whole))

    monkeypatch.setattr(follower, "step", step)
    monkeypatch.setattr(server, "IDLE_POLL_INTERVAL", 0.1)
    made("one", 100)
    follower.start()
    assert follower.wait(0, 5) == 1
    assert follower.status_text() == "Showing run one, the newest"


@pytest.fixture
def locked(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that may not be read, and that holds a folder; root, as whom tests may run, may read everything."""
    folder = home / "locked"
    (folder / "inner").mkdir(parents=True)
    listing = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).is_relative_to(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return folder


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("locked", "You may not read the folder"),
        ("locked/inner", "You may not read the folder"),
        ("file", "&#x27;file&#x27; is not a folder. Enter the folder"),
        ("", "Enter a folder"),
        ("~nobody-of-this-name/logs", "There is no folder"),
        ("x" * 300, "There is no folder"),
        ("%00", "There is no folder"),
    ],
)
@pytest.mark.usefixtures("locked")
def test_a_folder_that_cannot_be_shown_is_said_in_the_form_with_what_to_do(home: Path, said: str, answer: str) -> None:
    (home / "file").write_text("x")
    browser = Browser()
    page = browser.ask("POST", "/carme/", f"show=folder&folder={said}")
    assert browser.status.startswith("400")
    assert answer in page
    assert 'role="alert"' in page
    assert browser.follower.choice == Choice()


def test_one_folder_that_cannot_be_read_keeps_no_other_from_view(home: Path, locked: Path) -> None:
    board = MultiplexerProxy(BoardThatNotes)
    follower = Follower(board)
    follower.choose(Choice("folder", str(home)))
    for name in ("a", "locked/b"):
        (home / name).mkdir()
        (home / name / "events.out.tfevents.100.node1.7.0").write_text("x")
    follower.step(whole=True)
    assert board.added == {str(home / "a"): "a"}
    assert follower.status_text() == f"Showing {home}, but {locked} cannot be read: Permission denied"


def test_a_folder_without_events_is_not_said_to_be_shown(home: Path, locked: Path) -> None:
    follower = Follower(MultiplexerProxy(BoardThatNotes))
    (home / "logs").mkdir()
    follower.choose(Choice("folder", str(home / "logs")))
    follower.step(whole=True)
    assert follower.status_text() == f"No events in {home}/logs yet; they show here once they are written"
    follower.choose(Choice("folder", str(locked)))  # as one that was locked after it was chosen
    follower.step(whole=True)
    assert follower.status_text() == f"{locked} cannot be read: Permission denied"


def test_the_form_is_there_where_the_runs_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(*, ever: bool = False) -> list[str]:
        raise OSError(116, "Stale file handle", f"/home/x/.carme/runs{ever:d}")

    monkeypatch.setattr(server, "runs", stale)
    monkeypatch.setattr(files, "runs", stale)
    page = Browser().ask("GET", "/carme/")
    assert "/home/x/.carme/runs1 cannot be read: Stale file handle." in page
    said = Browser().ask("POST", "/carme/", "show=run&run=a")
    assert "/home/x/.carme/runs1 cannot be read: Stale" in said
    assert "<option>They cannot be read</option>" in said
    assert 'value="newest" checked' in said, "what cannot be chosen is not chosen"


class Browser:
    """Asks the pages as TensorBoard's server does; the application below them answers with one page."""

    INDEX = b"<!doctype html><html><head><title>x</title></head><style>a{src:url(/font-roboto/a.woff2)}</style></html>"

    def __init__(self) -> None:
        self.follower = Follower(MultiplexerProxy(BoardThatNotes))
        self.pages = Pages(self.follower, self._theirs)
        self.status, self.headers = "", {}  # type: ignore[var-annotated]

    def _theirs(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(self.INDEX)))])
        return [self.INDEX]

    def ask(self, method: str, path: str, body: str = "") -> str:
        def start(status: str, headers: list[tuple[str, str]]) -> None:
            self.status, self.headers = status, dict(headers)

        path, _, query = path.partition("?")
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
        environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body.encode())}
        return b"".join(self.pages(environ, start)).decode()


def test_the_page_follows_and_stays_below_its_prefix() -> None:
    browser = Browser()
    page = browser.ask("GET", "/")
    assert '<head><script src="carme/live.js"></script>' in page
    assert "url(font-roboto/a.woff2)" in page
    assert browser.headers["Content-Length"] == str(len(page))
    assert "addEventListener" in browser.ask("GET", "/carme/live.js")
    assert browser.headers["Content-Type"] == "text/javascript"
    assert browser.ask("GET", "/data/runs") == Browser.INDEX.decode()  # everything else is theirs


def test_the_form_shows_what_is_chosen_and_writes_nothing_unescaped(home: Path) -> None:
    browser = Browser()
    assert '<select name="run" aria-label="Which run" disabled>' in browser.ask("GET", "/carme/")
    made("<i>run", 100)
    page = browser.ask("GET", "/carme/")
    assert "<option>&lt;i&gt;run</option>" in page
    assert 'value="newest" checked' in page
    assert "{{" not in page
    page = browser.ask("POST", "/carme/", "show=folder&folder=%22%3E%3Cb%3E")
    assert browser.status.startswith("400")
    assert 'role="alert"' in page
    assert "<b>" not in page
    assert browser.follower.choice == Choice()
    (home / "logs").mkdir()
    browser.ask("POST", "/carme/", "show=folder&folder=logs")
    assert (browser.status, browser.headers["Location"]) == ("303 See Other", "../")
    assert browser.follower.choice == Choice("folder", str(home / "logs"))
    page = browser.ask("GET", "/carme/")
    assert f'value="{home}/logs"' in page
    assert 'value="folder" checked' in page


def test_news_are_numbers_and_a_sentence() -> None:
    browser = Browser()
    assert json.loads(browser.ask("GET", "/carme/news?seen=")) == {"news": 0, "shows": browser.follower.status_text()}
    made("one", 100)
    browser.follower.step(whole=True)
    told = json.loads(browser.ask("GET", "/carme/news?seen=0"))
    assert told == {"news": 1, "shows": "Showing run one, the newest"}


def test_a_file_that_vanishes_is_a_change_and_no_error() -> None:
    follower = Follower(MultiplexerProxy(BoardThatNotes))
    file = made("one", 100)
    follower.step(whole=True)
    file.unlink()
    assert follower.step(whole=False)
    assert not follower.step(whole=False)
