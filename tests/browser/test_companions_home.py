"""The home page shows the companions of a session, and asks for confirmation before it gives them back."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect
from rig.hub import Hub, wait_for
from rig.truth import Truth
from windows import screenshots


def test_companions_are_shown_and_given_back_after_a_confirmation(hub: Hub, people: Callable[[str], Page]) -> None:
    page = people("alice")
    hub.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2)
    session = Truth(hub).row("alice")
    companions = f"/carme/sessions/{session.id}/companions"
    token = hub.api("POST", "/users/alice/tokens", {"note": "test"}).body["token"]
    for body in ({"nodes": 2, "gpus": 4, "name": "run1"}, {"nodes": 2, "gpus": 8, "name": "a-run-with-a-long-name"}):
        answer = hub.api("POST", companions, {"cpus": 1, "memory_mib": 2048, "minutes": 30, **body}, token)
        assert answer.status == 201, answer
    more = page.get_by_role("region", name="More nodes for your server")
    runs = more.get_by_text(re.compile("2 nodes more for run1, 4 × virtual a100, since .*, until .* at the latest"))
    waits = more.get_by_text(
        re.compile("2 nodes more for a-run-with-a-long-name, 8 × virtual a100: waiting for 8 × a100")
    )
    page.goto(f"{hub.demo.url}/hub/home")

    def both() -> bool:
        page.reload()
        return runs.count() == waits.count() == 1

    wait_for(both, 60, "one to run and the other to wait")
    screenshots(page, "companions-home", dark=True)
    more.get_by_role("button", name="Give back…").first.click()
    question = page.get_by_role("dialog", name="Give these nodes back?")
    expect(question).to_contain_text("Your server continues.")
    question.get_by_role("button", name="Keep it as it is").click()
    expect(question).to_be_hidden()
    expect(runs).to_be_visible()
    more.get_by_role("button", name="Give back…").first.click()
    with page.expect_navigation(url="**/hub/home"):  # where it is already: the next one is the answer's
        question.get_by_role("button", name="Give back").click()
    page.reload()
    expect(page.get_by_text("run1, 4 × virtual a100, since")).to_have_count(0)
    listed = hub.api("GET", companions, token=token).body["companions"]
    assert [each["state"] in ("ending", "ended") for each in listed] == [True, False]
    assert hub.server("alice")["ready"]  # type: ignore[index]
