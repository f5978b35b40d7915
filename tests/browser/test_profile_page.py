"""The profile of a rank opens from the page Runs, in speedscope, without anything from elsewhere."""

from __future__ import annotations

import uuid

from playwright.sync_api import BrowserContext, Request, expect
from rig.hub import Hub
from rig.training import Lab
from windows import PHONE, log_in, screenshot

NAME = f"profiled-{uuid.uuid4().hex[:8]}"
PROFILED = f"""%%distributed -n 2 --gpus-per-task 0 --profile 2:4 --time 10m --name {NAME}
import torch
from carme_hub.training import here
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
for step in range(6):
    net(torch.randn(128, 64)).square().mean().backward()
    here.step(step, 6)
"""


def test_the_profile_of_a_rank_opens_from_the_page_runs(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "tina", gpus=1, cpus=2, memory_gib=6, time_minutes=60)
    lab.check_in_thread("%load_ext carme_hub.training")
    lab.check_in_thread(PROFILED, 200)
    page = window.new_page()
    log_in(page, hub, "tina", "home")
    page.goto(f"{hub.demo.url}/user/tina/carme/runs.html")
    page.get_by_role("row").filter(has_text=NAME).get_by_role("button", name=NAME, exact=True).click()
    page.get_by_role("heading", name="Profile over time").scroll_into_view_if_needed()
    screenshot(page, "profile-links")
    with window.expect_page() as opened:
        page.get_by_role("link", name="Rank 1", exact=True).click()
    board = opened.value
    elsewhere: list[str] = []
    wrong: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith((hub.demo.url, "blob:", "data:")):
            elsewhere.append(request.url)

    board.on("request", note)
    board.on("pageerror", lambda error: wrong.append(str(error)))
    board.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    expect(board).to_have_title(f"{NAME}, rank 1 - speedscope", timeout=60_000)
    expect(board.get_by_text("Time Order").first).to_be_visible(timeout=60_000)
    expect(board.get_by_text("Sandwich").first).to_be_visible()
    screenshot(board, "profile-timeline")
    board.get_by_text("Sandwich").first.click()
    expect(board.get_by_text("aten::addmm").first).to_be_visible(timeout=30_000)
    screenshot(board, "profile-sandwich")
    board.set_viewport_size(PHONE)
    screenshot(board, "profile-phone")
    assert wrong == []
    assert elsewhere == []
    board.close()
    page.goto(f"{hub.demo.url}/user/tina/carme/timeline/{NAME}/7")
    expect(page.get_by_role("status")).to_contain_text("has no profile of rank 7", timeout=30_000)
