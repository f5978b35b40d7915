"""The page of a start shows each sentence once, and follows the start over connections that break and a dead hub."""

from __future__ import annotations

import json

from playwright.sync_api import BrowserContext, Route, expect
from rig.hub import Hub
from windows import log_in, ready, screenshots

WAIT = "#!/bin/sh\nsleep 600\n"


def test_a_page_whose_connection_broke_repeats_nothing(hub: Hub, window: BrowserContext) -> None:
    page = window.new_page()
    messages = ["Server requested", "Request accepted.", "Submitting to Slurm."]
    asked: list[str] = []

    def break_the_first(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            route.continue_()
            return
        body = "".join(f"data: {json.dumps({'progress': 10, 'message': text})}\n\n" for text in messages)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    full = hub.cluster.sbatch("--mem=100", "--gres=gpu:h100:4", "-t", "60", user="ada", script=WAIT)
    try:
        log_in(page, hub, "alice", "home")
        page.route("**/progress*", break_the_first)
        page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=h100")
        ready(page)
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/spawn-pending/**", timeout=30_000)
        expect(page.get_by_text("Waiting for").first).to_be_visible()
        lines = page.locator(".carme-said").all_text_contents()
        assert len(asked) > 1
        assert lines[: len(messages)] == messages
        assert len(lines) == len(set(lines))
        screenshots(page, "start-waiting")
    finally:
        hub.cluster.run("scancel", str(full))
        hub.stop_server("alice")


def test_a_start_is_followed_over_a_hub_that_dies(hub: Hub, window: BrowserContext) -> None:
    page = window.new_page()
    page.clock.install()
    full = hub.cluster.sbatch("--mem=100", "--gres=gpu:h100:4", "-t", "60", user="ada", script=WAIT)
    try:
        log_in(page, hub, "alice", "home")
        page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=h100")
        ready(page)
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/spawn-pending/**", timeout=30_000)
        expect(page.get_by_text("Waiting for").first).to_be_visible()
        hub.kill()  # the proxy keeps the connection open
        page.clock.fast_forward(35_000)
        expect(page.get_by_text("The hub does not answer.")).to_be_visible(timeout=30_000)
        screenshots(page, "start-hub-away")
        hub.start()
        hub.cluster.run("scancel", str(full))
        page.wait_for_url("**/user/alice/**", timeout=120_000)
    finally:
        hub.cluster.run("scancel", str(full))
        hub.recover()
        hub.stop_server("alice")
