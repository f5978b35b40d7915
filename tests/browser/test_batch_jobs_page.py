"""A run is submitted from the page Runs, with its price first, and cancelled on the home page after a question."""

from __future__ import annotations

import re
import uuid

from playwright.sync_api import BrowserContext, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import DESK, PHONE, assert_fits, log_in, screenshot, screenshots

NAME = f"small-{uuid.uuid4().hex[:8]}"


def test_a_run_is_submitted_and_cancelled_by_buttons(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "tina", gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    lab.check_in_thread("%load_ext carme_hub.training")
    lab.check_in_thread(f"%%distributed -n 1 --gpus-per-task 0 --name {NAME}\nprint('done')", 120)
    page = window.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    log_in(page, hub, "tina", "home")
    runs = f"{hub.demo.url}/user/tina/carme/runs.html"
    page.goto(runs)
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name=NAME, exact=True))
    row.get_by_role("button", name=NAME, exact=True).click()
    page.get_by_text("Repeat", exact=True).click()
    # More GPUs than are free: it waits.
    page.get_by_label("Options that change").fill("-n 8 --nodes 2 --gpus-per-task 1 --time 1h")
    box = page.get_by_label("As a batch job, which outlives this session (needs --time)")
    expect(box).not_to_be_checked()
    box.check()
    screenshot(page, "batch-job-form")
    page.set_viewport_size(PHONE)
    assert_fits(page)
    screenshot(page, "batch-job-form-phone")
    page.set_viewport_size(DESK)
    page.get_by_role("button", name="Start", exact=True).click()
    said = page.get_by_text("A batch job of 2 nodes with 8 virtual GPUs is requested. Costs up to 8.27 GPU-hours")
    expect(said).to_be_visible(timeout=30_000)
    screenshot(page, "batch-job-price")
    page.get_by_role("button", name="Start it").click()
    expect(page.get_by_text(f"{NAME}-2 is submitted.")).to_be_visible(timeout=30_000)
    second = page.get_by_role("row").filter(has=page.get_by_role("button", name=f"{NAME}-2", exact=True))
    expect(second).to_contain_text(re.compile("Waiting.*Waiting for 8 × a100"), timeout=60_000)
    screenshot(page, "batch-job-waits")

    page.goto(f"{hub.demo.url}/hub/home")
    jobs = page.get_by_role("region", name="Your batch jobs")
    listed = jobs.get_by_text(re.compile(f"{NAME}-2: 2 nodes, 8 × virtual a100: waiting for 8 × a100"))
    expect(listed).to_be_visible()
    screenshots(page, "batch-jobs-home", dark=True)
    jobs.get_by_role("button", name="Cancel…").click()
    question = page.get_by_role("dialog", name="Cancel this batch job?")
    expect(question).to_contain_text("Its run does not start.")
    screenshot(page, "batch-job-cancel")
    question.get_by_role("button", name="Keep it as it is").click()
    expect(listed).to_be_visible()
    jobs.get_by_role("button", name="Cancel…").click()
    with page.expect_navigation(url="**/hub/home"):
        question.get_by_role("button", name="Cancel the job").click()
    wait_for(lambda: page.reload() is not None and jobs.count() == 0, 60, "the job to be gone")
    assert hub.server("tina")["ready"]  # type: ignore[index]

    page.goto(runs)
    expect(second).to_contain_text("The batch job was cancelled.", timeout=30_000)
    second.get_by_role("button", name=f"{NAME}-2", exact=True).click()
    page.get_by_text("Repeat", exact=True).click()
    expect(box).to_be_checked()
    assert wrong == []


def test_a_session_is_opened_where_a_batch_job_runs(hub: Hub, window: BrowserContext) -> None:
    name = f"beside-{NAME}"
    lab = Lab(hub, "tina", gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    lab.check_in_thread("%load_ext carme_hub.training")
    cell = f"%%distributed -n 1 --gpus-per-task 1 --submit --time 10m --name {name}\nimport time; time.sleep(500)"
    lab.check_in_thread(cell, 60)
    wait_for(lambda: len([job for job in hub.jobs() if job["state"] == "RUNNING"]) == 2, 60, "the batch job to run")
    lab.stop()
    [job] = hub.jobs()
    page = window.new_page()
    log_in(page, hub, "tina", "home")
    jobs = page.get_by_role("region", name="Your batch jobs")
    link = jobs.get_by_role("link", name="Open a session on its node")
    expect(link).to_be_visible(timeout=30_000)
    screenshots(page, "batch-job-beside")
    link.click()
    expect(page.get_by_text("A link has filled in this form.")).to_be_visible()
    assert page.locator("#carme-a100-node").input_value() == job["nodes"]
    assert page.locator("#carme-a100-image").input_value() == "training"
    screenshots(page, "batch-job-beside-form")
    page.get_by_role("button", name="Start", exact=True).click()
    wait_for(lambda: len([each for each in hub.jobs() if each["state"] == "RUNNING"]) == 2, 60, "the session to run")
    assert {each["nodes"] for each in hub.jobs()} == {job["nodes"]}
    hub.wait_server("tina")  # JupyterHub answers 500 to a stop in the middle of a start
    hub.stop_server("tina")
    page.goto(f"{hub.demo.url}/hub/home")
    jobs.get_by_role("button", name="Cancel…").click()
    with page.expect_navigation(url="**/hub/home"):
        page.get_by_role("dialog", name="Cancel this batch job?").get_by_role("button", name="Cancel the job").click()
    wait_for(lambda: hub.jobs() == [], 60, "the job to be gone")
