"""A training from its template to its curve: on two nodes, then with ranks added and given back by buttons."""

from __future__ import annotations

import json
import os
import uuid

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import log_in, shot, shots

MARK = uuid.uuid4().hex[:8]
#: Whatever the number of ranks: a step of a tenth of a second.
GROWS = f"""%%distributed -n 1 --elastic 1:3 --backend torchrun --name grows-{MARK}
import time
from carme_hub.training import here
for number in range(3000):
    here.step(number, 3000, samples=8)
    time.sleep(0.1)
"""


def cell(page: Page, words: str) -> Locator:
    """Return the first cell of the notebook whose code has these words."""
    return page.locator(".jp-Notebook .jp-CodeCell").filter(has_text=words).first


def type_at_end_of_line(page: Page, of: Locator, words: str, text: str) -> None:
    """Type at the end of the line that has some words, as somebody does who clicks there."""
    of.locator(".cm-line").filter(has_text=words).first.click()
    page.keyboard.press("End")
    page.keyboard.type(text)


def open_notebook(page: Page, hub: Hub, path: str) -> None:
    page.goto(f"{hub.demo.url}/user/bob/lab/tree/{path}?reset")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=120_000)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first).to_be_attached(timeout=60_000)


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


@pytest.mark.skipif(os.environ.get("CARME_NIGHTLY") != "1", reason="by night, until it has passed more often")
def test_from_a_template_to_two_nodes_more_ranks_and_a_curve(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "bob", gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    page = window.new_page()
    log_in(page, hub, "bob", "home")

    # The template, from the launcher.
    page.goto(f"{hub.demo.url}/user/bob/lab?reset")
    card = page.locator('.jp-LauncherCard[title^="New from template"]').first
    card.wait_for(timeout=120_000)
    with window.expect_page() as opened:
        card.click()
    gallery = opened.value
    gallery.get_by_role("heading", name="New from template").wait_for(timeout=60_000)
    shots(gallery, "training-gallery")
    gallery.get_by_role("button", name="Notebook of DDP").click()
    gallery.wait_for_url("**/lab/tree/ddp*.ipynb", timeout=60_000)
    path = gallery.url.rpartition("/lab/tree/")[2].partition("?")[0]
    gallery.close()

    # On two nodes.
    open_notebook(page, hub, path)
    ranks = cell(page, "RANKS = 1")
    ranks.locator(".cm-line").filter(has_text="RANKS = 1").click()
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    page.keyboard.type("4")
    trained = cell(page, "%%distributed")
    type_at_end_of_line(page, trained, "%%distributed", f" --nodes 2 --name two-{MARK}")
    run_all(page)
    shown = trained.locator(".jp-OutputArea")
    expect(shown).to_contain_text("2 nodes", timeout=60_000)  # what the companion is, before it is asked for
    expect(shown).to_contain_text("node2", timeout=120_000)
    expect(page.locator(".jp-OutputArea").last).to_contain_text("epoch 5: loss", timeout=120_000)
    expect(shown).to_contain_text("Finished")
    trained.scroll_into_view_if_needed()
    shot(page, "training-two-nodes")

    # Ranks are added and given back.
    grows = {"cell_type": "code", "source": GROWS, "metadata": {}, "outputs": [], "execution_count": None, "id": "a"}
    kernel = {"kernelspec": {"name": "carme-torchrun", "display_name": "PyTorch, torchrun", "language": "python"}}
    notebook = {"cells": [grows], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    body = {"type": "notebook", "format": "json", "content": notebook}
    hub.server_api("PUT", "bob", "", f"/api/contents/grows-{MARK}.ipynb", body)
    open_notebook(page, hub, f"grows-{MARK}.ipynb")
    run_all(page)
    live = cell(page, "%%distributed").locator(".jp-OutputArea")
    expect(live).to_contain_text("Running", timeout=90_000)
    live.get_by_role("button", name="Add a rank").click()
    expect(live).to_contain_text("2 ranks", timeout=120_000)
    expect(live.locator("tr").filter(has_text="running")).to_have_count(2, timeout=60_000)
    shot(page, "training-two-ranks")
    live.get_by_role("button", name="Give one back").click()
    expect(live).to_contain_text("was given back", timeout=60_000)
    wait_for(lambda: len(hub.jobs()) == 1, 60, "the companion's job to end")
    live.get_by_role("button", name="Stop").click()
    expect(live).to_contain_text("Stopped", timeout=60_000)
    expect(live).not_to_contain_text("SignalException")
    shot(page, "training-stopped")

    # The curve, and what the form says of it.
    measure = ["carme-hub", "scaling", "run", "scaling.py", "--ranks", "1,2", "--batch", "32", "--repeats", "2"]
    measure += ["--steps", "5", "--blocks", "3", "--gpus-per-task", "0", "--name", f"curve-{MARK}"]
    code = (
        "import subprocess, sys\nfrom carme_hub.training import templates\nfrom pathlib import Path\n"
        "Path('scaling.py').write_text(templates.named('scaling').script.read_text())\n"
        f"done = subprocess.run({measure!r}, capture_output=True, text=True)\n"
        "print(done.returncode, done.stdout[-2000:], done.stderr[-2000:])"
    )
    said, thread = lab.begin(code, 240)  # in a thread: Playwright has this one's loop
    thread.join(250)
    assert said.out.startswith("0 "), json.dumps(said.out)
    hub.stop_server("bob")
    page.goto(f"{hub.demo.url}/hub/spawn/bob?opt-profile=a100&opt-image=training")
    curve = page.locator("[data-profile=a100] .carme-curve").filter(has_text=f"curve-{MARK}")
    expect(curve.first).to_be_visible()
    curve.first.locator("summary").click()
    expect(curve.first).to_contain_text("Measured")
    shots(page, "training-curve-on-the-form", at=curve.first)
