"""A training from its template to its curve: on two nodes, watched, with ranks added and given back by buttons."""

from __future__ import annotations

import json
import math
import re
import time
import uuid

from board import last_step
from playwright.sync_api import BrowserContext, Locator, Page, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import PHONE, log_in, screenshot, screenshots

from carme_hub.training.notebook.display import MEDIA_TYPE

MARK = uuid.uuid4().hex[:8]
#: Whatever the number of ranks: a step of a tenth of a second.
GROWS = f"""%%distributed -n 1 --elastic 1:3 --backend torchrun --name grows-{MARK}
import time
from carme_hub.training import here
for number in range(3000):
    here.step(number, 3000, samples=8, loss=1 / (1 + number / 50))
    time.sleep(0.1)
"""
AGAIN = f"""%%distributed -n 2 --gpus-per-task 0 --name again-{MARK}
import time
for number in range(1000):
    print("tick", number, flush=True)
    time.sleep(0.5)
"""


def cell(page: Page, words: str) -> Locator:
    """Return the first cell of the notebook whose code has this text."""
    return page.locator(".jp-Notebook .jp-CodeCell").filter(has_text=words).first


def type_at_end_of_line(page: Page, of: Locator, words: str, text: str) -> None:
    """Type at the end of the line with a text, after a click on it."""
    of.locator(".cm-line").filter(has_text=words).first.click()
    page.keyboard.press("End")
    page.keyboard.type(text)


def open_notebook(page: Page, hub: Hub, path: str) -> None:
    """Open a notebook, and wait until its kernel is idle.

    The status bar says so. The notebook's own sign says "idle" before there is a kernel, and what JupyterLab is told to
    run until then it forgets: the cell keeps its ``[ ]``, without a word.
    """
    page.goto(f"{hub.demo.url}/user/bob/lab/tree/{path}?reset")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("PyTorch, torchrun | Idle", timeout=120_000)


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").first).to_have_text(re.compile(r"\[[*\d]+\]:"))


def from_launcher(page: Page, title: str) -> Page:
    """Click a card of the launcher, and return the window that it opens."""
    with page.context.expect_page(timeout=120_000) as opened:
        page.locator(f'.jp-LauncherCard[title^="{title}"]').first.click(timeout=120_000)
    return opened.value


def from_template(page: Page) -> str:
    """Create a notebook from the template DDP, and return its path."""
    gallery = from_launcher(page, "New from template")
    gallery.get_by_role("heading", name="New from template").wait_for(timeout=60_000)
    screenshots(gallery, "training-gallery")
    # JupyterLab opens it in the first window: two would share a workspace.
    with gallery.expect_response("**/templates/open/ddp*.ipynb", timeout=60_000) as opened:
        gallery.get_by_role("button", name="Notebook of DDP").click()
    path = opened.value.url.rpartition("/templates/open/")[2]
    expect(page.get_by_role("tab", name=path)).to_be_visible(timeout=60_000)
    gallery.close()  # it closes itself, where the browser lets it
    return path


def train_on_two_nodes(page: Page) -> None:
    """Change the template's number of ranks, and run it."""
    ranks = cell(page, "RANKS = 1")
    ranks.locator(".cm-line").filter(has_text="RANKS = 1").click()
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    page.keyboard.type("4")
    trained = cell(page, "%%distributed")
    type_at_end_of_line(page, trained, "%%distributed", f" --nodes 2 --name two-{MARK}")
    run_all(page)
    shown = trained.locator(".jp-OutputArea")
    expect(shown).to_contain_text("2 nodes", timeout=60_000)  # the companion's size, before it is requested
    expect(shown).to_contain_text("node2", timeout=120_000)
    expect(page.locator(".jp-OutputArea").last).to_contain_text("epoch 5: loss", timeout=120_000)
    expect(shown).to_contain_text("Finished")
    trained.scroll_into_view_if_needed()
    screenshot(page, "training-two-nodes")


def add_a_rank_and_give_it_back(page: Page, board: Page, hub: Hub) -> None:
    """Train continuously, open its curve, and press each button."""
    run_all(page)
    live = cell(page, "%%distributed").locator(".jp-OutputArea")
    expect(live).to_contain_text("Running", timeout=90_000)
    board.bring_to_front()
    expect(board.get_by_role("status").first).to_have_text(f"Showing run grows-{MARK}, the newest", timeout=60_000)
    wait_for(lambda: last_step(board) >= 0, 30, "the curve")
    before = last_step(board)
    wait_for(lambda: last_step(board) > before, 30, "the curve to grow by itself")
    page.bring_to_front()
    live.get_by_role("button", name="Add a rank").click()
    expect(live).to_contain_text("2 ranks", timeout=120_000)
    expect(live.locator("tr").filter(has_text="running")).to_have_count(2, timeout=60_000)
    log = live.get_by_text("It has printed nothing.").last
    expect(log).to_be_hidden()
    live.locator("summary").filter(has_text="Rank 1").press("Enter")  # without a mouse
    expect(log).to_be_visible()
    screenshot(page, "training-two-ranks")
    live.get_by_role("button", name="Give one back").click()
    expect(live).to_contain_text("was given back", timeout=60_000)
    expect(live).to_contain_text(f"grows-{MARK}: 1 rank on")
    wait_for(lambda: len(hub.jobs()) == 1, 60, "the companion's job to end")
    stop(live)
    expect(live).not_to_contain_text("SignalException")
    screenshot(page, "training-stopped")


def stop(live: Locator) -> None:
    """Press Stop, first by mistake."""
    live.get_by_role("button", name="Stop").click()
    live.get_by_role("button", name="Let it run").click()
    live.get_by_role("button", name="Stop").click()
    live.get_by_role("button", name="Stop the run").click()
    expect(live).to_contain_text("Stopped", timeout=60_000)


def write_notebook(hub: Hub, path: str, source: str, *outputs: dict[str, object]) -> None:
    """Write a notebook with one cell, as somebody else would send it."""
    code = {"cell_type": "code", "source": source, "metadata": {}, "execution_count": None, "id": "a"}
    kernel = {"kernelspec": {"name": "carme-torchrun", "display_name": "PyTorch, torchrun", "language": "python"}}
    notebook = {"cells": [code | {"outputs": outputs}], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    hub.server_api(
        "PUT", "bob", "", f"/api/contents/{path}", {"type": "notebook", "format": "json", "content": notebook}
    )


def save(page: Page, hub: Hub, path: str) -> None:
    """Save a notebook, and wait until the server has its outputs as they are shown now."""
    ended = "running" not in page.locator(".jp-OutputArea .carme-run").first.inner_text()

    pressed = -math.inf

    def saved() -> bool:
        nonlocal pressed
        if time.monotonic() > pressed + 5:  # again: JupyterLab drops it while it is busy with what has just come
            pressed = time.monotonic()
            page.keyboard.press("Control+s")
        found = hub.server_api("GET", "bob", "", f"/api/contents/{path}")
        if found.status != 200:  # it is being written, and for a moment there is no file
            return False
        (code,) = found.body["content"]["cells"]
        return any(output.get("data", {}).get(MEDIA_TYPE, {}).get("ended") == ended for output in code["outputs"])

    wait_for(saved, 30, "the notebook to be saved")


def open_again_during_the_run_and_after_it(page: Page, hub: Hub, lab: Lab) -> None:
    """A page that was not there when the kernel sent something shows the run as it is, and its buttons work."""
    path = f"again-{MARK}.ipynb"
    write_notebook(hub, path, AGAIN)
    open_notebook(page, hub, path)
    run_all(page)
    live = cell(page, "%%distributed").locator(".jp-OutputArea")
    expect(live).to_contain_text("tick 2", timeout=90_000)
    live.locator("summary").filter(has_text="Rank 1").click()
    save(page, hub, path)
    page.goto("about:blank")
    page.goto(f"{hub.demo.url}/user/bob/lab/tree/{path}?reset")  # its kernel is busy, and answers no page now
    expect(live).to_contain_text("tick", timeout=60_000)
    seen = int((live.locator("pre").first.text_content() or "").rpartition("tick ")[2])
    expect(live).to_contain_text(f"tick {seen + 4}", timeout=30_000)  # it follows the run again, by itself
    expect(live).to_contain_text("Running")
    live.get_by_role("button", name="Stacks").click()
    expect(live).to_contain_text("time.sleep", timeout=30_000)
    live.scroll_into_view_if_needed()
    page.keyboard.press("Control+b")  # JupyterLab's sidebar leaves no room on a phone
    screenshots(page, "training-opened-again", at=live)
    page.keyboard.press("Control+b")
    live.get_by_role("button", name="Hide").click()
    expect(live).not_to_contain_text("time.sleep")
    open_a_shell(page, hub, live)
    stop(live)
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Idle", timeout=30_000)
    expect(live.get_by_role("button")).to_have_count(0)
    save(page, hub, path)
    page.goto("about:blank")
    for kernel in hub.server_api("GET", "bob", "", "/api/kernels").body:
        if kernel["id"] != lab.kernel:
            hub.server_api("DELETE", "bob", "", f"/api/kernels/{kernel['id']}")
    deleted, thread = lab.begin(f"from carme_hub.training import distributed; distributed.delete('again-{MARK}')")
    thread.join(60)  # in a thread: Playwright has this one's loop
    assert not deleted.errors, deleted.error
    open_notebook(page, hub, path)
    expect(live).to_contain_text("Stopped")  # neither its kernel is there any more, nor the run
    assert "tick" in live.inner_text()


def open_a_shell(page: Page, hub: Hub, live: Locator) -> None:
    """A button opens a terminal in a rank, on its node. A terminal is a picture: what it does is read from a file."""
    live.get_by_role("button", name="Shell").click()
    live.get_by_label("Rank", exact=True).select_option("Rank 1")
    live.get_by_role("button", name="Open a terminal in it").click()
    page.locator(".xterm-screen").first.wait_for(timeout=60_000)
    page.locator(".xterm-helper-textarea").first.focus()
    file = f"shell-{MARK}.txt"

    def told() -> str:
        page.keyboard.type(f'echo "rank $CARME_RANK of $CARME_SIZE" > {file}\n')
        found = hub.server_api("GET", "bob", "", f"/api/contents/{file}")
        return str(found.body["content"]).strip() if found.status == 200 else ""

    wait_for(lambda: told() == "rank 1 of 2", 60, "the shell in the rank")
    screenshot(page, "training-shell")
    page.keyboard.type("exit\n")
    assert hub.server_api("DELETE", "bob", "", f"/api/contents/{file}").status == 204
    page.locator(".lm-TabBar-tab", has_text="again-").first.click()
    expect(live).to_contain_text("The terminal is in a tab of its own")


def open_a_notebook_of_somebody_else(page: Page, hub: Hub) -> None:
    """What a saved run says is shown, and nothing in it is executed."""
    data = {
        **{"run": f"theirs-{MARK}", "name": "theirs", "ended": False, "generation": 0, "others": []},
        "buttons": [["stop", "Stop", ""]],
        "head": "<p>Running <b onclick='window.stolen = 1'>theirs</b></p><img src=x onerror='window.stolen = 1'>"
        # A form's fields hide properties of its document.
        "<form name=body id=f></form><fieldset form=f name=childNodes></fieldset>"
        "<fieldset form=f name=childNodes><img src=x onerror='window.stolen = 1'></fieldset>",
        **{"ranks": "<script>window.stolen = 1</script>", "log": "<pre>epoch 1</pre>", "notes": ""},
    }
    output = {"output_type": "display_data", "metadata": {}, "data": {MEDIA_TYPE: data, "text/plain": "theirs"}}
    write_notebook(hub, f"theirs-{MARK}.ipynb", "pass", output)
    open_notebook(page, hub, f"theirs-{MARK}.ipynb")
    live = cell(page, "pass").locator(".jp-OutputArea")
    expect(live).to_contain_text("epoch 1")
    expect(live.get_by_role("button")).to_have_count(0)
    expect(live).to_contain_text(f"There is no run 'theirs-{MARK}' any more.", timeout=30_000)
    expect(live).to_contain_text("This is how it was when the notebook was saved.")
    expect(live.get_by_role("button")).to_have_count(0)
    assert page.evaluate("window.stolen") is None


def measure(lab: Lab) -> None:
    """Measure the scaling of the template *Scaling curve*, in a terminal."""
    script = f"scaling-{MARK}.py"
    words = ["carme-hub", "scaling", "run", script, "--ranks", "1,2", "--batch", "32", "--repeats", "2"]
    words += ["--steps", "5", "--blocks", "3", "--gpus-per-task", "0", "--name", f"curve-{MARK}"]
    code = (
        "import subprocess, sys\nfrom carme_hub.training import templates\nfrom pathlib import Path\n"
        f"Path({script!r}).write_text(templates.find_template('scaling').script.read_text())\n"
        f"done = subprocess.run({words!r}, capture_output=True, text=True)\n"
        "print(done.returncode, done.stdout[-2000:], done.stderr[-2000:])"
    )
    output, thread = lab.begin(code, 240)  # in a thread: Playwright has this one's loop
    thread.join(250)
    assert output.out.startswith("0 "), json.dumps(output.out)


def compare_runs(page: Page, hub: Hub) -> None:
    """Find both runs on the page Runs, give one a star, and look at what differs."""
    page.goto(f"{hub.demo.url}/user/bob/lab?reset")
    page.locator('.jp-LauncherCard[title^="Find, compare"]').first.click(timeout=120_000)
    runs = page.frame_locator("#carme-runs iframe")
    runs.get_by_label("Filter runs").fill(MARK)
    for name in (f"two-{MARK}", f"grows-{MARK}"):
        runs.get_by_label(f"Choose {name}", exact=True).check()
    runs.get_by_role("button", name=f"Star of two-{MARK}").click()
    expect(runs.get_by_role("button", name=f"Star of two-{MARK}")).to_have_text("★")
    runs.get_by_role("button", name="Compare 2").click()
    expect(runs.get_by_role("img", name="loss by step")).to_be_visible(timeout=30_000)
    expect(runs.get_by_role("region", name="Properties")).to_contain_text("--elastic")
    screenshot(page, "training-runs")


def test_from_a_template_to_two_nodes_more_ranks_and_a_curve(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "bob", gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    page = window.new_page()
    log_in(page, hub, "bob", "home")
    page.goto(f"{hub.demo.url}/user/bob/lab?reset")
    board = from_launcher(page, "TensorBoard")
    expect(board.get_by_role("status").first).to_contain_text("No run has written events yet", timeout=60_000)
    path = from_template(page)
    open_notebook(page, hub, path)
    train_on_two_nodes(page)
    board.bring_to_front()
    expect(board.get_by_role("status").first).to_have_text(f"Showing run two-{MARK}, the newest", timeout=60_000)
    for rank in range(4):
        expect(board.get_by_text(f"two-{MARK}/rank-{rank}").first).to_be_visible(timeout=30_000)
    wait_for(lambda: last_step(board) == 80, 30, "the whole curve")
    screenshot(board, "training-two-nodes-tensorboard")

    write_notebook(hub, f"grows-{MARK}.ipynb", GROWS)
    page.bring_to_front()
    open_notebook(page, hub, f"grows-{MARK}.ipynb")
    add_a_rank_and_give_it_back(page, board, hub)

    open_again_during_the_run_and_after_it(page, hub, lab)
    open_a_notebook_of_somebody_else(page, hub)

    compare_runs(page, hub)

    measure(lab)
    notebooks = [f"{name}-{MARK}.ipynb" for name in ("grows", "again", "theirs")]
    for mine in (path, *notebooks, f"scaling-{MARK}.py"):
        hub.server_api("DELETE", "bob", "", f"/api/contents/{mine}")
    hub.stop_server("bob")
    page.goto(f"{hub.demo.url}/hub/spawn/bob?opt-profile=a100&opt-image=training")
    curve = page.locator("[data-profile=a100] .carme-curve").filter(has_text=f"curve-{MARK}")
    expect(curve.first).to_be_visible()
    curve.first.locator("summary").click()
    expect(curve.first).to_contain_text("Measured")
    screenshots(page, "training-curve-on-the-form", at=curve.first)
    page.set_viewport_size(PHONE)
    table = curve.first.locator(".table-responsive")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth"), "the curve's table is wider than a phone"
