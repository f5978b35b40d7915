"""A run as JupyterLab's renderer gets it: from the kernel, and from the server where the kernel is silent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from notebook_parts import state

from carme_hub.training.launch.new_run import create
from carme_hub.training.notebook.display import MEDIA_TYPE, as_bundle, as_data
from carme_hub.training.run import control
from carme_hub.training.run.description import View
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.server.extension import MOST_RUNS, Runs

ELASTIC = {"ranks": 2, "backend": "torchrun", "elastic": [1, 4]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path))
    return create(RunOptions(2, name="net"), cell="pass")


def put(run: Run, **changes: Any) -> None:
    write_json(run.folder / "state.json", run.state() | changes)


def test_the_data_has_each_part_of_a_run_once_and_is_json() -> None:
    data = as_data(View(state(), 1042.0, {0: ["epoch 1"], 1: ["<b>other</b>"]}, "/runs/run1"))
    assert json.loads(json.dumps(data))["run"] == "run1"
    assert "Running" in data["head"]
    assert "n2" in data["ranks"]
    assert data["log"] == "<pre>epoch 1</pre>"
    ((number, summary, log),) = data["others"]
    assert (number, log) == (1, "<pre>&lt;b&gt;other&lt;/b&gt;</pre>")
    assert summary.startswith("Rank 1")
    assert "/runs/run1" in data["notes"]


@pytest.mark.parametrize(
    ("changes", "buttons"),
    [
        ({}, ["stop", "stacks", "shell"]),
        ({"asked": ELASTIC}, ["stop", "stacks", "shell", "+1", "-1"]),
        ({"state": "finished", "asked": ELASTIC}, []),
    ],
)
def test_a_live_run_has_buttons_and_an_elastic_one_more(changes: dict[str, Any], buttons: list[str]) -> None:
    assert [word for word, _, _ in as_data(View(state(**changes), 1042.0))["buttons"]] == buttons


def test_a_notebook_without_the_renderer_names_the_way_back_until_the_run_has_ended() -> None:
    way = "distributed.watch(&#x27;run1&#x27;)"
    assert way in as_bundle(View(state(), 1042.0))["text/html"]
    assert way not in as_bundle(View(state(state="finished"), 1042.0))["text/html"]


def test_the_server_has_what_a_kernel_would_send_also_after_the_run_has_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "_has_conductor", lambda self, said: True)
    runs, log = Runs(), run.folder / "rank-0.log"
    put(run, **{key: value for key, value in state().items() if key not in ("id", "name", "asked")})
    log.write_text("epoch 1\nepo")
    assert runs.bundle(run.id)[MEDIA_TYPE]["log"] == "<pre>epoch 1</pre>"
    log.write_text("epoch 1\nepoch 2")
    put(run, state="finished")
    bundle = runs.bundle(run.id)
    assert bundle[MEDIA_TYPE]["log"] == "<pre>epoch 1\nepoch 2</pre>"  # an unfinished line is a line after the end
    assert bundle[MEDIA_TYPE]["ended"]
    assert set(bundle) == {MEDIA_TYPE, "text/html", "text/plain"}


def test_the_logs_of_few_runs_are_kept_open(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_has_conductor", lambda self, said: True)
    runs = Runs()
    for _ in range(MOST_RUNS + 2):
        runs.bundle(create(RunOptions(1), cell="pass").id)
    assert len(runs._logs) == MOST_RUNS


@pytest.mark.parametrize("id", ["nowhere", "..", "a/b", ""])
def test_a_run_that_is_not_there_is_said(run: Run, id: str) -> None:
    with pytest.raises(NoRun):
        Runs().bundle(id)
    with pytest.raises(NoRun):
        Runs().ask(id, "stop")


def test_a_button_asks_the_conductor_and_says_what_came_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(_id: str, message: dict[str, Any], _timeout: float) -> dict[str, Any]:
        asked.append(message)
        return {"message": "One rank more is requested."} if message["op"] == "resize" else {}

    monkeypatch.setattr(control, "ask", answer)
    monkeypatch.setattr(Run, "stacks", lambda self: {1: "in b", 0: "in a"})
    assert Runs().ask(run.id, "stop") == "Stop requested."
    assert Runs().ask(run.id, "+1") == "One rank more is requested."
    assert Runs().ask(run.id, "stacks") == "===== Rank 0\nin a\n===== Rank 1\nin b"
    assert asked == [{"op": "stop"}, {"op": "resize", "change": 1}]
    with pytest.raises(ValueError, match="is none of stop, stacks"):
        Runs().ask(run.id, "+5000")


def test_of_two_runs_with_one_name_each_page_has_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_has_conductor", lambda self, said: True)
    newer = create(RunOptions(3, name="net"), cell="pass")
    assert (run.id, newer.id) == ("net", "net-2")
    asked: list[str] = []
    monkeypatch.setattr(control, "ask", lambda id, _message, _timeout: asked.append(id) or {})
    runs = Runs()
    for each in (run, newer):
        data = runs.bundle(each.id)[MEDIA_TYPE]
        runs.ask(each.id, "stop")
        assert data["run"] == each.id
        watched = re.fullmatch(r"distributed\.watch\('(.*)'\)", data["watch"])
        assert watched is not None
        assert Run.load(watched[1]).folder == each.folder
    assert asked == ["net", "net-2"]


def test_a_run_that_has_the_id_of_a_deleted_one_shows_nothing_of_that(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "_has_conductor", lambda self, said: True)
    runs, log = Runs(), run.folder / "rank-0.log"
    put(run, **{key: value for key, value in state().items() if key not in ("id", "name", "asked")})
    log.write_text("a long line of the old one\n")
    assert "old one" in runs.bundle(run.id)[MEDIA_TYPE]["log"]
    put(run, began=2000.0)
    log.write_text("new\n")
    assert runs.bundle(run.id)[MEDIA_TYPE]["log"] == "<pre>new</pre>"


def test_a_button_of_a_run_that_has_no_conductor_here_says_so(run: Run) -> None:
    assert "has ended" in Runs().ask(run.id, "+1") or "session" in Runs().ask(run.id, "+1")


def test_a_run_of_another_session_is_stopped_by_a_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_has_conductor", lambda self, said: True)
    assert Runs().ask(run.id, "stop") == "Stop requested."
    assert (run.folder / "stop").exists()
