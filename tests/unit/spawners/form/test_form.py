"""The form shows what may be chosen and nothing else, in words that are true, with every value escaped."""

from __future__ import annotations

import time
from html.parser import HTMLParser
from typing import Any

import pytest

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.spawners.form.form import Offer, clock, duration, live_answer, render_form

NOW = 1_795_000_000.0
NODE = Node("n1", "mixed", True, ("gpu",), 64, 0, 512 * 1024, 0, {"a100": 8}, {"a100": 5})
GPU: dict[str, Any] = {
    "slug": "gpu",
    "display_name": "GPU",
    "gpus": {"types": {"a100": 8, "h100": 2}, "max": 8},
    "cpus": {"max": 64, "default": 4},
    "memory_gib": {"max": 64},
    "time_hours": {"max": 24},
}


def offer(*profiles: dict[str, Any], **more: Any) -> Offer:
    given = {"accounts": ("ml",), "images": {"base": ""}, "cluster": Cluster([NODE], seen=NOW), **more}
    return Offer(parse_profiles(profiles or (GPU,)), **given)


class Controls(HTMLParser):
    """Finds names, ids, labels and inline scripts or styles of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.inline: list[str] = []
        self.selected: dict[str, str] = {}
        self._select = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.inline += [k for k in values if k == "style" or k.startswith("on")]
        if tag in ("script", "style"):
            self.inline.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if "name" in values:
            self.names.append(values["name"])
            self._select = values["name"]
        if tag == "option" and "selected" in values:
            self.selected[self._select] = values["value"]
        self.references += values.get("aria-describedby", "").split() + [values[k] for k in ("for",) if k in values]


def test_only_what_there_is_to_choose_has_a_control() -> None:
    shown = Controls(render_form(offer({"slug": "p", "display_name": "P", "cpus": 2})))
    assert shown.names == ["profile", "p.working_folder"]
    shown = Controls(render_form(offer(accounts=("a", "b"), images={"x": "", "y": ""}, reservations=("r",))))
    keys = ["gpu_type", "gpus", "time_minutes", "cpus", "memory_gib", "image", "account", "reservation"]
    assert shown.names == ["profile", *(f"gpu.{k}" for k in keys), "gpu.working_folder"]


def test_every_label_and_description_points_at_something_and_no_id_is_twice() -> None:
    page = offer(GPU, {"display_name": "B", "cpus": {"max": 99}}, accounts=("a", "b"))
    options = {"profile": "gpu", "gpus": 99, "cpus": 99, "working_folder": ".."}
    shown = Controls(render_form(page, options=options, problems=page.examine(options)[1]))
    assert len(shown.ids) == len(set(shown.ids))
    assert set(shown.references) <= set(shown.ids)


def test_nothing_is_inline_so_that_a_strict_content_security_policy_fits() -> None:
    assert Controls(render_form(offer(), from_link=True)).inline == []


def test_texts_from_anywhere_are_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>"
    page = offer({**GPU, "display_name": evil, "description": evil}, images={"base": evil, "b": evil}, why_empty=evil)
    options = {"working_folder": evil, evil: evil}
    html = render_form(page, options=options, problems=page.examine(options)[1])
    assert "<img" not in html
    assert "<img" not in render_form(Offer((), why_empty=evil))


def test_values_and_problems_stand_at_their_fields() -> None:
    page = offer()
    options = {"gpus": 3, "cpus": 99}
    html = render_form(page, options=options, problems=page.examine(options)[1])
    assert 'href="#carme-gpu-cpus"' in html
    assert 'aria-invalid="true"' in html
    assert Controls(html).selected["gpu.gpus"] == "3"


def test_the_last_choice_is_shown_only_while_it_is_valid() -> None:
    assert Controls(render_form(offer(), last={"profile": "gpu", "gpus": 3})).selected["gpu.gpus"] == "3"
    assert Controls(render_form(offer(), last={"profile": "gpu", "gpus": 30})).selected["gpu.gpus"] == "1"
    assert Controls(render_form(offer(), last={"profile": "gone"})).selected["gpu.gpus"] == "1"


def test_a_link_may_name_the_node_and_the_next_start_does_not() -> None:
    at = offer()
    page = render_form(at, options={"profile": "gpu", "node": "n1"})
    assert "gpu.node" in Controls(page).names
    assert "The server waits until this node has room." in page
    assert "gpu.node" not in Controls(render_form(at, options={"profile": "gpu"})).names
    last = render_form(at, last={"profile": "gpu", "node": "n1", "gpus": 2})
    assert "gpu.node" not in Controls(last).names
    assert Controls(last).selected["gpu.gpus"] == "2"
    request, _ = at.examine({"profile": "gpu", "node": "n1"})
    assert request is not None
    assert request.node == "n1"
    for wrong, said in (("n2", "There is no node n2 for this profile."), ("n1,n2", "is not the name of a node")):
        request, [problem] = at.examine({"profile": "gpu", "node": wrong})
        assert (request, problem.field) == (None, "node")
        assert said in problem.message


def test_the_start_on_one_node_is_that_of_its_gpus() -> None:
    other = Node("n2", "idle", True, ("gpu",), 64, 0, 512 * 1024, 0, {"a100": 8}, {"a100": 0})
    full = Node("n1", "mixed", True, ("gpu",), 64, 0, 512 * 1024, 0, {"a100": 8}, {"a100": 8})
    at = offer(cluster=Cluster([full, other], seen=NOW))
    for node, state in (("", "now"), ("n1", "wait"), ("n2", "now")):
        answer: Any = live_answer(at, {"profile": "gpu", "gpus": 1, "node": node}, NOW)
        assert answer["profiles"]["gpu"]["state"] == state, node


def test_a_smaller_choice_is_a_link_that_works_without_javascript() -> None:
    html = render_form(offer(), options={"gpus": 8, "time_minutes": 60}, here_url="/hub/spawn/ada", now=NOW)
    assert "Take" in html
    assert "/hub/spawn/ada?opt-gpus=3&amp;opt-time_minutes=60&amp;opt-profile=gpu" in html


def test_virtual_gpus_are_labelled_wherever_they_are_shown() -> None:
    html = render_form(offer(virtual=True), options={"gpus": 8}, now=NOW)
    without = html.replace("virtual a100", "").replace("virtual h100", "")
    text = "".join(part.split(">", 1)[-1] for part in without.split("<"))
    assert "a100" not in text
    assert "Virtual GPUs" in html


def test_an_outage_is_said_with_its_time_and_starting_stays_possible() -> None:
    html = render_form(offer(cluster=Cluster([NODE], seen=NOW - 900, silent_since=NOW - 600)), now=NOW)
    assert f'since <span id="carme-silent-since">{clock(NOW - 600, NOW)}</span>' in html
    assert "were free at" in html
    assert "starts now" not in html


def test_an_empty_offer_says_why_and_what_to_do() -> None:
    assert "no Slurm account yet" in render_form(Offer((), accounts=()))
    assert "which group or account you need" in render_form(Offer((), accounts=("x",)))


def test_a_profile_of_its_own_options_offers_its_choices() -> None:
    entry = {
        **GPU,
        "profile_options": {
            "data": {
                "display_name": "Data",
                "choices": {
                    "none": {"display_name": "None"},
                    "big": {"display_name": "Big", "description": "read-only"},
                },
                "unlisted_choice": {"enabled": True, "display_name": "Path"},
            }
        },
    }
    html = render_form(offer(entry), options={"data": "big"})
    shown = Controls(html)
    assert shown.selected["gpu.data"] == "big"
    assert "gpu.data--unlisted-choice" in shown.names
    assert "Big – read-only" in html


def test_the_live_answer_follows_the_choice() -> None:
    answer: Any = live_answer(offer(), {"profile": "gpu", "gpus": "8"}, NOW)
    assert answer["profiles"]["gpu"]["state"] == "wait"
    assert answer["profiles"]["gpu"]["suggestion"] == {"options": {"gpus": 3}, "what": "3 × a100"}
    assert live_answer(offer(), {"gpus": 2}, NOW)["profiles"]["gpu"]["sentence"] == "3 of 8 a100 free; starts now"  # type: ignore[index]
    wrong: Any = live_answer(offer(), {"gpus": 9}, NOW)
    assert [p["field"] for p in wrong["problems"]] == ["gpus"]


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (1, "1 minute"),
        (90, "1 hour 30 minutes"),
        (1440, "1 day"),
        (2880 + 61, "2 days 1 hour 1 minute"),
        (0, "0 minutes"),
    ],
)
def test_times_are_said_as_people_say_them(minutes: int, words: str) -> None:
    assert duration(minutes) == words


def test_a_time_of_another_day_names_the_day() -> None:
    noon = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
    assert clock(noon, noon) == "12:00"
    assert clock(noon + 86400, noon) == "tomorrow 12:00"
    assert clock(noon - 86400, noon) == "yesterday 12:00"
    assert clock(noon + 5 * 86400, noon) == "Thu 26 Nov 12:00"
