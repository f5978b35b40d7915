"""JupyterLab's panel says in words what an image of one's own is and how far it is; the module itself runs, in Node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rig.javascript import run_module

from carme_hub.paths import share_folder

MODULE = share_folder().parent / "jupyter/labextensions/carme-hub/static/image-keep.js"
BUILD: dict[str, Any] = {"name": "tools", "state": "building", "problem": "", "job": 7}
ABOUT: dict[str, Any] = {"packages": ["rich==14.0"], "base": "torch", "base_digest": "", "below": ""}


@pytest.mark.parametrize(
    ("build", "has_log", "words"),
    [
        (BUILD, False, "tools waits for its job (job 7) …"),
        ({**BUILD, "job": 0}, False, "tools waits for its job …"),
        (BUILD, True, "tools is being built (job 7) …"),
        ({**BUILD, "state": "ready"}, True, "tools is ready."),
        ({**BUILD, "state": "failed", "problem": "Its time was over."}, True, "tools is not built. Its time was over."),
        ({**BUILD, "state": "removed"}, True, "tools is removed."),
    ],
)
def test_it_says_how_far_a_build_is(build: dict[str, Any], has_log: bool, words: str) -> None:
    assert run_module(MODULE, f"out = m.stateWords({json.dumps(build)}, {json.dumps(has_log)})") == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "1 package on top of torch:"),
        (
            {"packages": ["a", "b"], "base_digest": "sha256:" + "1" * 64},
            f"2 packages on top of torch (sha256:{'1' * 12}…):",
        ),
        ({"below": "climate"}, "1 package on top of your image climate, which is on top of torch:"),
        ({"base": ""}, "1 package on top of this session's image:"),
    ],
)
def test_it_says_what_the_image_would_be(changes: dict[str, Any], words: str) -> None:
    assert run_module(MODULE, f"out = m.aboutWords({json.dumps({**ABOUT, **changes})})") == words


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("tools", True), ("2026.tools_a-b", True), ("x" * 40, True), ("x" * 41, False), ("", False), ("My Tools", False)],
)
def test_a_name_is_checked_before_it_is_sent(name: str, is_one: bool) -> None:
    assert (run_module(MODULE, f"out = m.nameProblem({json.dumps(name)})") == "") is is_one


def test_of_a_long_log_the_last_lines_are_kept() -> None:
    assert run_module(MODULE, "out = m.lastLines('a\\nb\\nc\\nd', 2)") == "…\nc\nd"
    assert run_module(MODULE, "out = m.lastLines('a\\nb', 2)") == "a\nb"
