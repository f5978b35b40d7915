"""Impossible records of Slurm: an administrator sees why they wait, and decides each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect
from rig.forged_records import ForgedRecords
from rig.hub import Hub
from windows import screenshots

from carme_hub.sandbox.demo import DEFAULT_POLICY

SERVICE = "/services/quotas/"
SCRIPT = "#!/bin/sh\nsleep 2\n"


@pytest.fixture
def forged(hub: Hub) -> Iterator[ForgedRecords]:
    hub.demo.set_policy(DEFAULT_POLICY)
    records = ForgedRecords(hub.cluster)
    yield records
    records.forget()


def compare(page: Page, url: str) -> None:
    """Compare the ledger with Slurm now."""
    page.goto(f"{url}administration/health")
    page.get_by_label("Compare the last").fill("1")
    page.get_by_role("button", name="Compare now").click()
    expect(page.get_by_text(re.compile("agree to the second|differ")).first).to_be_visible(timeout=30_000)


def card(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=title)


def settle(page: Page, title: str, choice: str, reason: str, minutes: str = "") -> None:
    found = card(page, title)
    found.get_by_label(choice).check()
    if minutes:
        found.get_by_label("Minutes to charge").fill(minutes)
    found.get_by_label(re.compile("^Reason")).fill(reason)
    found.get_by_role("button", name="Settle…").click()
    expect(page.get_by_role("heading", name="Settle this anomaly?")).to_be_visible()


def test_an_anomaly_is_shown_with_its_reason_and_decided(
    hub: Hub, forged: ForgedRecords, people: Callable[[str], Page]
) -> None:
    url, cluster = f"{hub.demo.url}{SERVICE}", hub.cluster
    ada, alice = people("ada"), people("alice")
    job = cluster.sbatch("--mem=100", "--gres=gpu:a100:1", "-t", "5", user="alice", script=SCRIPT)
    cluster.wait_job(job, "COMPLETED")
    alice.goto(url)
    charged = alice.get_by_text(re.compile(f"job {job}\\b")).first
    for _ in range(30):
        if charged.count():
            break
        compare(ada, url)
        alice.goto(url)
    expect(charged).to_be_visible()

    forged.longer(job, 1800)
    back = forged.copy(job, 1, seconds=-60)
    long = forged.copy(job, 2, seconds=7200)
    titles = [f"Job {job}: changed", f"Job {back}: negative", f"Job {long}: long"]
    compare(ada, url)
    ada.goto(f"{url}administration/anomalies")
    for title in titles:
        expect(card(ada, title)).to_be_visible()
    expect(card(ada, titles[0]).get_by_text("Slurm’s record differs from what was charged for it.")).to_be_visible()
    screenshots(ada, "gpu-time-anomalies-waiting", dark=True)

    card(ada, titles[1]).get_by_role("button", name="Settle…").click()  # nothing chosen yet: the browser says so
    expect(ada.get_by_role("heading", name="Anomalies")).to_be_visible()
    settle(ada, titles[1], "Nothing more", "The clock of the node stepped back")
    expect(ada.get_by_text("Nothing is charged.")).to_be_visible()
    screenshots(ada, "gpu-time-anomalies-confirm")
    ada.get_by_role("button", name="Settle it").click()
    expect(ada.get_by_text(f"Settled: {titles[1]}.")).to_be_visible()
    settle(ada, titles[2], "Another time, in minutes", "It ended when its node was drained", minutes="3")
    expect(ada.get_by_text("3 min of its GPUs are charged.")).to_be_visible()
    ada.get_by_role("button", name="Settle it").click()
    settle(ada, titles[0], "The time in Slurm’s record", "The node's own log agrees")
    ada.get_by_role("button", name="Settle it").click()
    expect(ada.get_by_text("No anomaly waits for a decision.")).to_be_visible()
    expect(ada.get_by_text("The clock of the node stepped back")).to_be_visible()
    screenshots(ada, "gpu-time-anomalies-decided")
    alice.goto(url)
    expect(alice.get_by_text(re.compile("It ended when its node was drained")).first).to_be_visible()
    expect(alice.get_by_text(re.compile("The node's own log agrees")).first).to_be_visible()
    expect(alice.get_by_text(re.compile("^use of [0-9]+ ")).first).to_be_visible()  # a difference lasts no time
    screenshots(alice, "gpu-time-anomalies-statement")
