"""The hub shows a user's training runs while no session runs, finds them, and shows nobody those of others."""

from __future__ import annotations

import json
import re
import uuid

from playwright.sync_api import BrowserContext, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import log_in, screenshots

NAME = f"seen-{uuid.uuid4().hex[:8]}"
CELL = f"""%%distributed -n 2 --gpus-per-task 0 --name {NAME}
from carme_hub.training import here
for step in range(1, 4):
    here.step(step, total=3, loss=1 / step)
"""


def test_runs_are_seen_at_the_hub_when_the_session_has_ended(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "tina", gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    lab.check_in_thread("%load_ext carme_hub.training\nfrom carme_hub.training import distributed")
    lab.check_in_thread(CELL, 120)
    lab.check_in_thread(f"distributed.mark({NAME!r}, star=True, tag=['paper'], note='the best so far')")
    page = window.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    log_in(page, hub, "tina", "home")
    page.get_by_role("link", name="Your training runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    named = re.compile(rf"\b{NAME}$")  # with the words for its star before it
    listed = page.locator("li.card").filter(has=page.get_by_role("heading", name=named))
    # The session sends it within 72 seconds.
    wait_for(
        lambda: page.reload() is not None and listed.filter(has_text="the best so far").count() == 1, 100, "the run"
    )
    expect(page.get_by_role("link", name="In your session")).to_have_attribute("href", "/user/tina/carme/runs.html")
    lab.stop()
    page.reload()
    for text in ("Finished", "2 ranks, 1 node", "loss 0.3333", "paper", "the best so far", "With a star"):
        expect(listed).to_contain_text(text)
    expect(page.get_by_role("link", name="start one")).to_have_attribute("href", "/hub/spawn")
    screenshots(page, "hub-runs", dark=True)

    page.get_by_label("Words in name, tags, note or state").fill(f"paper {NAME}")
    page.get_by_label("State", exact=True).select_option("finished")
    page.get_by_label("With a star").check()
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"^\s*1 of \d+ runs?, as of"))
    expect(listed).to_have_count(1)
    page.get_by_label("State", exact=True).select_option("live")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(listed).to_have_count(1)

    other = hub.login("bob")
    assert NAME not in other.get("/hub/carme/runs").body
    bobs = hub.api("POST", "/users/bob/tokens", {"expires_in": 600}).body["token"]
    assert hub.api("PUT", "/carme/users/tina/runs", {"runs": []}, token=bobs).status == 404
    answer = hub.api("PUT", "/carme/users/bob/runs", {"runs": [{"id": "../x"}]}, token=bobs)
    assert (answer.status, json.dumps(answer.body).count("runs.0.id")) == (400, 1)
    assert wrong == []
