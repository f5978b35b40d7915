"""Data for a session in a browser: from the form to the delivered results, and what is kept on a node to its rescue."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from rig.hub import Hub, wait_for
from rig.s3 import S3, SECRET, s3_server, settings_of_user, slow_line
from rig.staging import sums
from rig.truth import Row, Truth
from windows import ready, screenshot, screenshots

USER = "alice"
SET = "sets/observations-of-beetles-in-the-river-valleys-of-two-hundred-years-version-2026"
LONG = "run/validation-predictions-of-the-model-with-the-smallest-loss-of-all-epochs"
MIB = 6
WORK = f"""
import os, pathlib
scratch = pathlib.Path(os.environ["CARME_SCRATCH"])
for number in range(3):
    path = scratch / f"{LONG}-{{number}}.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(os.urandom(1 << 20))
print(sorted(path.name for path in (scratch / "data").iterdir()))
"""


@pytest.fixture
def s3(hub: Hub) -> Iterator[S3]:
    """A store of objects behind a slow line, which alice's rclone knows."""
    hub.login(USER)
    with (
        tempfile.TemporaryDirectory(prefix="carme-s3-") as folder,
        s3_server(Path(folder).resolve() / "buckets") as found,
        slow_line(found.port, MIB << 15) as port,  # of each connection
        settings_of_user(USER, found.settings(port)),
    ):
        for number in range(MIB):
            path = found.folder / "bucket" / SET / f"part-{number:05}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(1 << 20))
        yield found


@pytest.fixture
def home(hub: Hub) -> Iterator[Path]:
    """A folder of alice's for results, which are removed afterwards."""
    hub.login(USER)
    folder = Path(f"~{USER}").expanduser() / "delivered-by-a-test"
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def lines(page: Page, label: str) -> Locator:
    """Return a field of the profile that is chosen."""
    return page.get_by_label(label).locator("visible=true").first


def start(page: Page) -> None:
    """Press Start."""
    ready(page)
    page.get_by_role("button", name="Start", exact=True).click()


def work(hub: Hub, code: str = WORK) -> str:
    """Run code in a kernel of the session, in a thread: Playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(hub.run_cell, USER, hub.new_kernel(USER), code).result()


def sweep(hub: Hub, over: Callable[[], bool]) -> None:
    """Let the node try again, as its timer does, until something is so."""
    program = hub.cluster.layout.node_programs / "carme-stage-out"
    deadline = time.monotonic() + 60
    while not over():
        assert time.monotonic() < deadline, subprocess.run([program, "list"], capture_output=True, text=True).stdout
        subprocess.run([program, "sweep"], check=True, timeout=120, capture_output=True)
        time.sleep(0.5)


def state_of(hub: Hub, row: Row) -> str:
    """Return the state of a session's copies, as REST has it."""
    rows = hub.api("GET", f"/carme/users/{USER}/staging").body["staging"]
    return str(next(each["state"] for each in rows if each["session"] == row.id))


def end(hub: Hub, row: Row, state: str) -> None:
    """End the session, and wait until the hub has heard of its results."""
    hub.stop_server(USER)
    wait_for(lambda: state_of(hub, row) == state, 60, f"the results to be {state}")


def test_data_is_on_the_node_and_results_that_are_kept_there_are_rescued_or_removed(
    hub: Hub, people: Callable[[str], Page], s3: S3, home: Path
) -> None:
    bob, page = people("bob"), people(USER)
    bob.goto(f"{hub.demo.url}/hub/home")
    bob.get_by_role("link", name="Data on nodes").click()
    expect(bob.get_by_text("No results of yours wait on a node.")).to_be_visible()
    screenshots(bob, "data-none")

    # The form, by the keyboard: what is wrong is said at its line, and stays to be corrected.
    page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=cpu")
    part = page.locator("summary", has_text="Data on the node, and results that are safe").locator("visible=true")
    part.focus()
    page.keyboard.press("Enter")
    lines(page, "Data to copy to the node before the start").fill("datasets/beetles -> data")
    lines(page, "Results to copy from the node after the end").fill("run -> /nowhere/at/all")
    start(page)
    expect(page.get_by_role("alert")).to_contain_text("Nothing was started.")
    page.get_by_role("alert").get_by_role("link", name=re.compile("give an absolute path, or NAME:PATH")).click()
    wrong = lines(page, "Data to copy to the node before the start")
    expect(wrong).to_have_value("datasets/beetles -> data")
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(lines(page, "Results to copy from the node after the end")).to_have_value("run -> /nowhere/at/all")
    screenshots(page, "staging-form-refused", at=wrong, dark=True)

    # A source that is not there: nothing starts, the page says which, and the form has what was typed.
    wrong.fill(f"s3:bucket/{SET}-that-nobody-has -> data")
    start(page)
    page.wait_for_url("**/spawn-pending/**", timeout=30_000)
    expect(page.get_by_role("heading", name="The server did not start")).to_be_visible(timeout=60_000)
    expect(page.locator(".carme-said", has_text="there is nothing under this name")).to_have_count(1)
    screenshots(page, "staging-start-failed")
    page.get_by_role("link", name="Back to the form").click()
    again = lines(page, "Data to copy to the node before the start")
    expect(again).to_have_value(f"s3:bucket/{SET}-that-nobody-has -> data")

    # One line says how far the copy is, and does not become many.
    again.fill(f"s3:bucket/{SET} -> data")
    start(page)
    page.wait_for_url("**/spawn-pending/**", timeout=30_000)
    copying = page.locator(".carme-said", has_text="Copying data to the node")
    expect(copying).to_contain_text(re.compile(r"MiB of 6\.0 MiB at .*/s, about \d+ seconds left"), timeout=60_000)
    first = copying.inner_text()
    screenshots(page, "staging-start")
    expect(copying).not_to_have_text(first)
    expect(copying).to_have_count(1)
    page.wait_for_url(f"**/user/{USER}/**", timeout=120_000)
    row = Truth(hub).row(USER)
    status = page.locator(".carme-status")
    expect(status).to_be_visible(timeout=120_000)
    status.click()
    panel = page.locator("#carme-activity")
    expect(panel).to_contain_text("The data is on the node: 6.0 MiB in 6 files.", timeout=60_000)
    expect(panel).to_contain_text(f"Your scratch folder is /scratch/{row.id}.")
    expect(panel).to_contain_text("When the session ends: run → /nowhere/at/all.")
    screenshot(page, "lab-staging")
    page.goto(f"{hub.demo.url}/hub/carme/data")
    expect(page.get_by_text("The data is on the node: 6.0 MiB in 6 files.").first).to_be_visible()
    screenshots(page, "data-running")
    assert "part-00000.bin" in work(hub)

    # Results whose target takes none are on the home page, with the reason, and go elsewhere by another try.
    end(hub, row, "kept")
    top = hub.cluster.layout.scratch / row.id
    wanted = {name.removeprefix("run/"): digest for name, digest in sums(top / "data").items() if "run/" in name}
    assert len(wanted) == 3
    page.goto(f"{hub.demo.url}/hub/home")
    screenshots(page, "home-with-kept-results")
    page.get_by_role("link", name="See why, and what to do").click()
    expect(page.get_by_role("heading", name=re.compile("Results are still on .*: 3.0 MiB"))).to_be_visible()
    expect(page.get_by_text(re.compile("Not all results have reached their targets: .+"))).to_be_visible()
    page.get_by_text("What was not copied, and why").click()
    screenshots(page, "data-kept", dark=True)
    targets = page.get_by_label("Targets, one line each: NAME -> TARGET")
    expect(targets).to_have_value("run -> /nowhere/at/all")
    targets.fill("run -> delivered-by-a-test")
    page.get_by_role("button", name="Try again with these targets").click()
    expect(page.get_by_role("alert")).to_contain_text("give an absolute path, or NAME:PATH")
    expect(targets).to_be_focused()
    expect(targets).to_have_value("run -> delivered-by-a-test")
    screenshots(page, "data-refused")
    targets.fill(f"run -> {home}")
    page.get_by_role("button", name="Try again with these targets").click()
    expect(page.get_by_role("status")).to_contain_text("The node tries again within minutes.")
    screenshots(page, "data-decided")
    sweep(hub, lambda: not top.exists())
    assert sums(home) == wanted
    page.reload()
    expect(page.get_by_text("The results are at their targets: 3.0 MiB in 3 files.")).to_be_visible()
    expect(page.get_by_text("No results of yours wait on a node.")).to_be_visible()
    expect(page.get_by_text(f"run → {home}", exact=True)).to_be_visible()
    expect(page.get_by_text("The session did not start.")).to_be_visible()
    screenshots(page, "data-delivered")

    # What is removed is asked about, and only then is it gone.
    stage = {"out": [{"source": "run", "target": "/nowhere/at/all"}]}
    hub.start_server(USER, profile="cpu", stage=stage)
    row = Truth(hub).row(USER)
    page.reload()
    expect(page.get_by_text("Results are copied after the end.")).to_be_visible()
    work(hub, WORK.partition("print")[0])
    end(hub, row, "kept")
    page.goto(f"{hub.demo.url}/hub/carme/data")
    page.get_by_role("link", name="Remove…").click()
    expect(page.get_by_text("Remove these results for good?")).to_be_visible()
    expect(page.get_by_role("link", name="Keep them")).to_be_focused()
    screenshots(page, "data-remove")
    page.get_by_role("button", name="Remove them").click()
    expect(page.get_by_role("status")).to_contain_text("You have decided to remove them")
    top = hub.cluster.layout.scratch / row.id
    assert top.exists()
    sweep(hub, lambda: not top.exists())
    page.reload()
    expect(page.get_by_text("No results of yours wait on a node.")).to_be_visible()
    expect(page.get_by_text("What had not reached its target is removed")).to_be_visible()
    screenshots(page, "data-removed")
    assert SECRET not in hub.log_text()
    assert SECRET not in page.content()
