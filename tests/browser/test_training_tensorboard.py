"""A run on two nodes, watched: TensorBoard from the launcher shows the curves of both ranks while it trains."""

from __future__ import annotations

import re
import uuid

from board import last_step
from playwright.sync_api import BrowserContext, Response, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import PHONE, assert_fits, log_in, screenshot

RUN = f"digits-{uuid.uuid4().hex[:8]}"
TRAINING = f"""%%distributed -n 2 --nodes 2 --gpus-per-task 1 --time 10m --name {RUN} --detach
import time
from carme_hub.training import here
for step in range(600):
    here.step(step, total=600, samples=32, loss=1 / (1 + step / 20) + here.rank / 50)
    time.sleep(0.5)
"""


def test_the_scalars_of_a_run_on_two_nodes_appear_while_it_trains(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "tina", gpus=1, cpus=1, memory_gib=4, time_minutes=60)
    page = window.new_page()
    log_in(page, hub, "tina", "home")
    page.goto(f"{hub.demo.url}/user/tina/lab?reset")
    card = page.locator('.jp-LauncherCard[title^="TensorBoard"]').first
    card.wait_for(timeout=120_000)
    expect(card.locator("img")).to_have_attribute("src", re.compile("server-proxy/icon/tensorboard"))
    wait_for(lambda: card.locator("img").evaluate("icon => icon.naturalWidth") > 0, 10, "the icon")
    screenshot(page, "training-launcher")
    with window.expect_page() as opened:
        card.click()
    board = opened.value
    complaints: list[str] = []
    board.on("pageerror", lambda error: complaints.append(str(error)))
    missing: list[str] = []

    def note(answer: Response) -> None:
        if answer.status >= 400:
            missing.append(f"{answer.status} {answer.url}")

    board.on("response", note)
    board.wait_for_url("**/user/tina/tensorboard/**")
    expect(board.get_by_role("link", name="Show something else")).to_be_visible(timeout=60_000)

    lab.check_in_thread("%load_ext carme_hub.training")
    assert f"distributed.watch('{RUN}')" in lab.check_in_thread(TRAINING, 150)
    # Nobody touches the page from here on.
    expect(board.get_by_role("status").first).to_have_text(f"Showing run {RUN}, the newest", timeout=120_000)
    for rank in ("rank-0", "rank-1"):
        expect(board.get_by_text(f"{RUN}/{rank}").first).to_be_visible(timeout=30_000)
    expect(board.locator("scalar-card").first).to_be_visible(timeout=30_000)
    wait_for(lambda: last_step(board) >= 5, 30, "the curve")
    before = last_step(board)
    wait_for(lambda: last_step(board) > before + 5, 30, "the curve to grow by itself")
    state = f"from carme_hub.training.run.run_folder import Run\nstate = Run.load({RUN!r}).state()\n"
    nodes = lab.check_in_thread(state + "print(state['state'], len(set(state['nodes'])))")
    assert nodes.split() == ["running", "2"]
    screenshot(board, "training-tensorboard-1280")
    board.set_viewport_size(PHONE)
    board.reload()
    expect(board.locator("scalar-card").first).to_be_visible(timeout=60_000)
    wait_for(lambda: last_step(board) > before + 5, 30, "the curve on a phone")
    box = board.locator("scalar-card").first.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= PHONE["width"], box  # TensorBoard's own page would not fit
    screenshot(board, "training-tensorboard-390")
    board.get_by_role("link", name="Show something else").click()
    assert_fits(board)
    expect(board.get_by_label("The newest run, and the next one when it begins")).to_be_checked()
    screenshot(board, "training-tensorboard-form-390")
    board.get_by_label("Which folder").fill("nowhere")
    expect(board.get_by_label("A folder", exact=True)).to_be_checked()
    board.get_by_role("button", name="Show").click()
    expect(board.get_by_role("alert")).to_contain_text("There is no folder 'nowhere'")
    assert_fits(board)
    board.get_by_label("Which run").select_option(RUN)
    expect(board.get_by_label("One run")).to_be_checked()
    board.get_by_role("button", name="Show").click()
    expect(board.get_by_role("status").first).to_have_text(f"Showing run {RUN}", timeout=60_000)
    assert [each for each in missing if "carme/" not in each] == []
    assert complaints == []
    lab.check_in_thread(f"from carme_hub.training import distributed\ndistributed.stop({RUN!r})")
    lab.stop()
