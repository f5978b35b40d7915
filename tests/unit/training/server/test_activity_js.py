"""What JupyterLab says of the session, in words, and which warnings are due; the module itself runs, in Node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rig.javascript import run_module

from carme_hub.paths import share_folder

MODULE = share_folder().parent / "jupyter/labextensions/carme-hub/static/session-words.js"
NOW = 1_800_000_000
GPU = {"utilisation": 80, "memory": 12_288, "memory_total": 40_960}
#: A storage as the browser has it, for all tabs.
STORAGE = "const kept = {}; const storage = {getItem: k => kept[k] ?? null, setItem: (k, v) => { kept[k] = v; }};"


def run(code: str) -> Any:
    """Run JavaScript with the module as ``m``, and return what it gives as ``out``."""
    return run_module(MODULE, code)


def view(**changes: Any) -> dict[str, Any]:
    used = {"gpus": [GPU], "virtual": False, "memory": 2000, "memory_limit": 8192, "cpu": 150, "cpus": 4}
    state = {"session": "one", "ends": NOW + 4320, "idle": {"state": "off"}}
    return {"now": NOW, "used": used, "state": state, "problem": "", **changes}


def idle(**changes: Any) -> dict[str, Any]:
    plain = {"state": "idle", "since": NOW - 3000, "deadline": NOW + 600, "action": "stop", "clicks_left": 2}
    return view(state={"session": "one", "ends": 0, "idle": {**plain, **changes}})


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (idle(), "GPU 80 %, 12 GiB · idle: stopped in 10 min"),
        (idle(action="tell"), "GPU 80 %, 12 GiB"),
        (view(), "GPU 80 %, 12 GiB · 1 h 12 min left"),
        (
            view(used={"gpus": [GPU, {**GPU, "utilisation": 0}], "virtual": True}),
            "Virtual GPUs 40 %, 24 GiB · 1 h 12 min left",
        ),
        (view(used={"gpus": [{"memory": 512}]}), "GPU use not known, 0.5 GiB · 1 h 12 min left"),
        (view(used={"gpus": [], "memory": 2048}, state=None), "Memory 2.0 GiB"),
        (
            view(used=None, state={"ends": 0, "left": "12.5 h left"}),
            "GPU time: 12.5 h left",
        ),
        (view(used=None, state={"ends": 0, "left": "no limit"}), ""),
        (view(used=None, state=None), ""),
    ],
)
def test_the_status_bar_says_what_is_known(seen: dict[str, Any], text: str) -> None:
    assert run(f"out = m.statusText({json.dumps(seen)})") == text


def due(seen: dict[str, Any]) -> list[tuple[str, list[str]]]:
    found = run(f"out = m.warnings({json.dumps(seen)})")
    return [(each["id"], each["actions"]) for each in found]


def with_left(seconds: int) -> dict[str, Any]:
    return view(state={"session": "one", "ends": NOW + seconds, "idle": {"state": "off"}})


@pytest.mark.parametrize(
    ("seen", "ids"),
    [
        (view(), []),
        (with_left(1800), [f"end-{NOW + 1800}-30"]),
        (with_left(599), [f"end-{NOW + 599}-10"]),
        (with_left(61), [f"end-{NOW + 61}-2"]),
        (with_left(0), []),
        (idle(), [f"idle-{NOW - 3000}-early"]),
        (idle(deadline=NOW + 200), [f"idle-{NOW - 3000}-late"]),
        (idle(deadline=NOW + 2000), []),
        (idle(state="warn", deadline=NOW + 2000), [f"idle-{NOW - 3000}-early"]),
        (idle(action="tell"), []),
        (idle(action="tell", state="warn"), []),
        (idle(action="tell", state="due", deadline=NOW - 60), [f"idle-{NOW - 3000}-told"]),
        (view(used={"gpus": [{**GPU, "memory": 37_000}]}), ["gpu-0-full"]),
        (view(used={"gpus": [], "memory": 7500, "memory_limit": 8192}), ["memory-full"]),
        (view(used={"gpus": [{"memory": None, "memory_total": 100}], "memory": None, "memory_limit": 8192}), []),
        (view(used=None, state=None), []),
        (view(home_full=True), ["home-full-one"]),
        (view(disk=[{"path": "/home/a", "text": "/home/a is 95 % full."}]), ["disk-/home/a"]),
    ],
)
def test_a_warning_is_due_when_it_is_and_not_before(seen: dict[str, Any], ids: list[str]) -> None:
    assert [id for id, _ in due(seen)] == ids


def test_a_warning_comes_with_what_can_be_done_at_once() -> None:
    assert due(with_left(600))[0][1] == ["extend", "save"]
    assert due(idle())[0][1] == ["here", "save"]
    assert due(idle(clicks_left=0))[0][1] == ["save"]


@pytest.mark.parametrize(
    ("seen", "due"),
    [
        (view(), ""),
        (view(state=None), ""),
        (idle(), ""),
        (idle(deadline=NOW + 300), f"{NOW - 3000}-{NOW + 300}-warned"),
        (idle(deadline=NOW + 91), f"{NOW - 3000}-{NOW + 91}-warned"),
        (idle(deadline=NOW + 90), f"{NOW - 3000}-{NOW + 90}-end"),
        (idle(deadline=NOW - 30, state="due"), f"{NOW - 3000}-{NOW - 30}-end"),
        (idle(deadline=NOW + 60, action="release_gpus"), f"{NOW - 3000}-{NOW + 60}-end"),
        (idle(deadline=NOW + 60, action="tell"), ""),
    ],
)
def test_documents_are_saved_when_the_last_warning_comes_and_before_the_end(seen: dict[str, Any], due: str) -> None:
    assert run(f"out = m.dueSave({json.dumps(seen)})") == due


def test_a_warning_is_shown_once_in_all_tabs_and_one_that_comes_again_once_an_hour() -> None:
    code = (
        f"{STORAGE} const one = new m.Shown('s', storage), two = new m.Shown('s', storage);"
        "const end = {id: 'end-1-10'}, full = {id: 'memory-full', again: true};"
        "out = [one.claim(end, 0), two.claim(end, 1), one.claim(full, 0), two.claim(full, 3600), two.claim(full, 3601),"
        "new m.Shown('another', storage).claim(end, 2)]"
    )
    assert run(code) == [True, False, True, False, True, True]


def test_a_browser_that_stores_nothing_still_warns() -> None:
    code = (
        "const broken = {getItem: () => { throw new Error(); }, setItem: () => { throw new Error(); }};"
        "out = new m.Shown('s', broken).claim({id: 'a'}, 0)"
    )
    assert run(code) is True
    assert run("out = new m.Shown('s', {getItem: () => '{', setItem: () => {}}).claim({id: 'a'}, 0)") is True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 min"), (59, "0 min"), (120, "2 min"), (3600, "1 h"), (4320, "1 h 12 min"), (-5, "0 min")],
)
def test_a_span_of_time_is_said_in_hours_and_minutes(seconds: int, text: str) -> None:
    assert run(f"out = m.span({seconds})") == text


def test_more_time_is_offered_as_the_hub_offers_it_with_its_price() -> None:
    offer = {"minutes": 60, "said": "1 h", "costs": "2 GPU-hours"}
    seen = view(state={"session": "one", "ends": NOW, "idle": {"state": "off"}, "more": [offer]})
    assert run(f"out = m.moreText(m.firstMore({json.dumps(seen)}))") == "+ 1 h (2 GPU-hours)"
    assert run(f"out = m.moreText({json.dumps({**offer, 'costs': ''})})") == "+ 1 h"
    assert run(f"out = m.moreText(m.firstMore({json.dumps(view(state=None))}))") == "+ 30 min"
