"""The home page and JupyterLab show what a session uses, live; one gives it more time, and cancels jobs, from there."""

from __future__ import annotations

import json
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from rig.hub import Hub, wait_for
from rig.truth import Row, Truth
from windows import PHONE, assert_fits, log_in, screenshot, screenshots

from carme_hub.sandbox.slurm.virtual_driver import change


@pytest.fixture
def session(hub: Hub) -> Iterator[Row]:
    """A session of alice with one virtual GPU that says it is used."""
    hub.start_server("alice", profile="a100", gpus=1, cpus=2, memory_gib=4, time_minutes=30)
    session = Truth(hub).row("alice")
    sample = Path(pwd.getpwnam("alice").pw_dir) / ".carme/sessions" / session.id / "usage.json"
    wait_for(sample.exists, 30, "the first sample")
    _, _, node, number = json.loads(sample.read_text())["gpus"][0]["uuid"].split("-")
    change(hub.cluster.layout.dev, node, int(number), {"utilisation": 80, "memory": 12288})
    yield session
    change(hub.cluster.layout.dev, node, int(number), {"utilisation": 0, "memory": 0})
    hub.stop_all()


def complaining(page: Page) -> list[str]:
    """Return the list in which the errors of a page are collected."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def test_a_session_is_seen_at_work_and_is_given_more_time_inside_jupyterlab(
    hub: Hub, window: BrowserContext, session: Row
) -> None:
    home = window.new_page()
    complaints = complaining(home)
    log_in(home, hub, "alice", "home")
    card = home.locator("section.carme-session")
    expect(card).to_have_count(1)
    # A minute is sent after its end, and the stream brings it without a reload. In the first it was used for a part.
    expect(card).to_contain_text(re.compile(r"[1-8]\d %, 12 GiB of 40 GiB"), timeout=150_000)
    expect(card).to_contain_text(re.compile("virtual", re.IGNORECASE))
    screenshots(home, "home-session", dark=True)
    before = home.locator(".carme-time time").inner_text()

    lab = window.new_page()
    wrong = complaining(lab)
    lab.goto(f"{hub.demo.url}/user/alice/lab?reset")
    status = lab.locator(".carme-status")
    expect(status).to_contain_text(re.compile(r"Virtual GPU 80 %, 12 GiB · \d+ min left"), timeout=120_000)
    warning = lab.locator(".jp-toast-message, .Toastify__toast").filter(has_text="This session ends in")
    expect(warning.first).to_be_visible()
    screenshot(lab, "lab-warning")
    lab.get_by_role("button", name=re.compile(r"^\+ 30 min")).first.click()
    expect(lab.get_by_text(re.compile("It has time until")).first).to_be_visible(timeout=60_000)
    status.click()
    panel = lab.locator("#carme-activity")
    expect(panel).to_contain_text("Virtual GPU 0")
    expect(panel).to_contain_text("80 %, 12 GiB of")
    expect(panel).to_contain_text("of 4.0 GiB")
    screenshot(lab, "lab-use")
    wait_for(
        lambda: hub.cluster.run("scontrol", "show", "job", str(session.job_id)).stdout.count("TimeLimit=01:00:00"),
        60,
        "Slurm's limit",
    )
    home.bring_to_front()
    expect(home.locator(".carme-time time")).not_to_have_text(before, timeout=60_000)

    # In a second tab the same warning is not shown again.
    other = window.new_page()
    other.goto(f"{hub.demo.url}/user/alice/lab/workspaces/second?reset")
    expect(other.locator(".carme-status")).to_contain_text("left", timeout=120_000)
    other.wait_for_timeout(2000)
    expect(other.locator(".Toastify__toast").filter(has_text="This session ends in")).to_have_count(0)
    other.close()

    home.get_by_role("button", name="Stop…").click()
    question = home.get_by_role("dialog", name="Stop this session?")
    expect(question).to_contain_text("Files in your home stay")
    screenshot(home, "home-session-stop")
    question.get_by_role("button", name="Stop it").click()
    ended = home.locator("#carme-ended-sessions li").first
    expect(ended).to_contain_text("ended", timeout=60_000)
    wait_for(lambda: Truth(hub).session(session.id).state == "ended", 60, "the session to end")
    wait_for(lambda: home.reload() is not None and ended.get_by_text("GPU").count() > 0, 60, "its efficiency")
    screenshots(home, "home-session-ended")
    assert complaints == []
    assert [each for each in wrong if "carme" in each] == []


def test_jobs_from_the_command_line_are_listed_and_cancelled_for_their_user_alone(
    hub: Hub, window: BrowserContext
) -> None:
    job = hub.cluster.sbatch(
        "--mem=100", "--array=0-5%2", "--job-name=sweep", user="bob", script="#!/bin/sh\nsleep 300\n"
    )
    others = hub.cluster.sbatch("--mem=100", "--job-name=secret-of-ada", user="ada", script="#!/bin/sh\nsleep 300\n")
    try:
        page = window.new_page()
        page.clock.install()
        complaints = complaining(page)
        log_in(page, hub, "bob", "home")
        jobs = page.locator("#carme-jobs")
        expect(jobs).to_contain_text("sweep", timeout=60_000)
        expect(jobs).to_contain_text(re.compile("2 run"), timeout=60_000)
        assert "secret-of-ada" not in page.content()
        screenshots(page, "home-jobs", dark=True)
        hub.kill()  # the proxy keeps the stream open
        page.clock.fast_forward(30_000)
        expect(page.locator("#carme-stale")).to_be_visible(timeout=20_000)
        screenshot(page, "home-hub-away")
        hub.start()
        later = hub.cluster.sbatch("--mem=100", "--job-name=later", user="bob", script="#!/bin/sh\nsleep 300\n")
        expect(page.locator("#carme-stale")).to_be_hidden(timeout=60_000)
        expect(jobs).to_contain_text("later", timeout=60_000)
        hub.cluster.run("scancel", str(later))
        page.set_viewport_size(PHONE)
        for tick in jobs.get_by_role("checkbox").all():
            tick.check()
        jobs.get_by_role("button", name="Cancel…").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Cancel")
        assert_fits(page)
        screenshot(page, "cancel-jobs")
        page.get_by_role("button", name=re.compile("^Cancel th")).click()
        wait_for(lambda: str(job) not in squeue(hub), 60, "the array to end")
        assert str(others) in squeue(hub)
        assert complaints == []
    finally:
        hub.cluster.run("scancel", str(job), str(others))


def squeue(hub: Hub) -> list[str]:
    """Return the numbers of all jobs, arrays by theirs."""
    return hub.cluster.run("squeue", "-h", "-o", "%F").stdout.split()
