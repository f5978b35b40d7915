"""GPU time in the browser: a student's balance and sessions, an owner's grants, an administrator's reports."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from balances import set_balance
from playwright.sync_api import Browser, Page, expect
from rig.hub import Hub, wait_for
from rig.truth import Truth
from windows import PHONE, log_in, screenshots

from carme_hub.sandbox.demo import DEFAULT_POLICY

SERVICE = "/services/quotas/"


#: A window for everybody, and an account that needs grants.
POLICY = {
    "zone": "Europe/Berlin",
    "quotas": [
        {"id": "week", "user": "*", "gpu_time": 20, "window": "week"},
        {"id": "teaching", "account": "teaching", "needs_grant": True},
    ],
}


#: How many points of a canvas have the colour of the bars.
BARS = """canvas => {
  const one = new OffscreenCanvas(1, 1).getContext("2d");
  one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bs-primary").trim();
  one.fillRect(0, 0, 1, 1);
  const bar = one.getImageData(0, 0, 1, 1).data;
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0;
  for (let at = 0; at < all.length; at += 4) found += [0, 1, 2, 3].every((part) => all[at + part] === bar[part]);
  return found;
}"""


def test_a_student_sees_what_a_session_cost_and_is_granted_more(
    hub: Hub, browser: Browser, people: Callable[[str], Page]
) -> None:
    hub.demo.set_policy(POLICY)
    # The hold of another file's session that never ran is released only when accounting must have its job.
    wait_for(lambda: held(hub) == 0, 180, "what other tests held to be settled")
    set_balance(hub, "teaching", 0, "The term begins")
    url = f"{hub.demo.url}{SERVICE}"
    hub.start_server("alice", profile="a100", gpus=2, time_minutes=60, account="physics")
    session = Truth(hub).row("alice").id
    alice = people("alice")
    alice.goto(url)
    expect(alice.get_by_role("heading", name="Account physics")).to_be_visible()
    expect(alice.get_by_role("heading", name="This week")).to_be_visible()
    expect(alice.get_by_text(re.compile("Held for the whole time limit")).first).to_be_visible()
    screenshots(alice, "gpu-time-held")
    alice.get_by_text("Ask for more GPU time").last.click()
    alice.get_by_label("GPU-hours").locator("visible=true").fill("12.5")
    alice.get_by_label("Reason", exact=True).locator("visible=true").fill("The last figures of my thesis")
    screenshots(alice, "gpu-time-ask")
    alice.get_by_role("button", name="Ask").locator("visible=true").click()
    expect(alice.get_by_text("You asked for 12.5 h for account teaching.")).to_be_visible()
    hub.stop_server("alice")
    wait_for_charge(alice, url)
    screenshots(alice, "gpu-time-mine", dark=True)
    use_per_day_is_a_chart_and_a_table(browser, alice, url)
    accounts_are_listed_with_their_balances(hub, alice)
    alice.goto(url)
    alice.get_by_role("link", name=f"session {session[:8]}").first.click()
    expect(alice.get_by_text(re.compile("^It cost"))).to_be_visible()
    for kind in ("hold", "charge", "release"):
        expect(alice.get_by_text(kind, exact=True)).to_be_visible()
    screenshots(alice, "gpu-time-session")

    tina = people("tina")
    tina.goto(url)
    tina.get_by_role("link", name="My accounts").click()
    expect(tina.get_by_role("heading", name="Account teaching", level=1)).to_be_visible()
    expect(tina.get_by_text("The last figures of my thesis").first).to_be_visible()
    screenshots(tina, "gpu-time-account")
    expect(tina.get_by_text("An administrator of the hub can approve this.").first).to_be_visible()
    ada = people("ada")
    ada.goto(f"{url}administration/requests")
    expect(ada.get_by_text("The last figures of my thesis").first).to_be_visible()
    ada.get_by_role("button", name="Approve").first.click()
    expect(ada.get_by_role("heading", name="Approve this request?")).to_be_visible()
    screenshots(ada, "gpu-time-approve")
    ada.get_by_role("button", name="Approve and grant 12.5 h").click()
    expect(ada.get_by_text("12.5 h granted: the request of alice")).to_be_visible()
    approved = alice.get_by_text("ada approved your request for 12.5 GPU-hours for account teaching")

    def told() -> bool:
        alice.goto(f"{hub.demo.url}/hub/home")
        return approved.is_visible()

    wait_for(told, 60, "the notice")  # after a database that was slow once, pages have none for 30 s
    screenshots(alice, "home-notices")
    ada.goto(f"{url}accounts/teaching")
    ada.get_by_label("GPU-hours").first.fill("40")
    ada.get_by_label("Reason").first.fill("The course of this term")
    ada.get_by_role("button", name="Grant…").click()
    ada.get_by_role("button", name="Grant 40 h").click()
    expect(ada.get_by_text("40 h granted to account teaching.")).to_be_visible()
    ada.reload()  # sends nothing again
    expect(ada.get_by_text("40 h granted to account teaching.")).to_have_count(0)
    alice.goto(url)
    expect(alice.get_by_text("Granted by ada: The course of this term.").first).to_be_visible()

    ada.goto(url)
    ada.get_by_role("link", name="Administration").click()
    expect(ada.get_by_role("link", name="physics")).to_be_visible()
    screenshots(ada, "gpu-time-administration")
    ada.get_by_role("link", name="Settling").click()
    ada.get_by_label("Compare the last").fill("1")
    ada.get_by_role("button", name="Compare now").click()
    expect(ada.get_by_text("The ledger and Slurm agree to the second.").first).to_be_visible(timeout=30_000)
    screenshots(ada, "gpu-time-settling")
    ada.get_by_role("link", name="Report").click()
    expect(ada.get_by_role("rowheader", name="physics")).to_be_visible()
    screenshots(ada, "gpu-time-report")
    ada.get_by_role("link", name="Anomalies").click()
    expect(ada.get_by_role("heading", name="Anomalies")).to_be_visible()
    screenshots(ada, "gpu-time-anomalies")
    ada.get_by_role("link", name="Policy").click()
    text = ada.get_by_label(re.compile("Rules, as YAML")).input_value()
    ada.get_by_label(re.compile("Rules, as YAML")).fill(text.replace("gpu_time: 20", "gpu_time: 1min"))
    ada.get_by_label("Reason for the change").fill("Nobody may do anything")
    screenshots(ada, "gpu-time-policy")
    ada.get_by_role("button", name="Check and try it…").click()
    expect(ada.get_by_text("would have been refused")).to_be_visible(timeout=30_000)
    screenshots(ada, "gpu-time-policy-preview", dark=True)
    ada.get_by_role("button", name="Activate").click()
    expect(ada.get_by_text("The new policy is in force.")).to_be_visible()
    expect(ada.get_by_text("Nobody may do anything").first).to_be_visible()
    hub.demo.set_policy(DEFAULT_POLICY)


def test_gpu_time_is_requested_by_keyboard_alone_and_without_javascript(hub: Hub, browser: Browser) -> None:
    hub.demo.set_policy(POLICY)
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    try:
        page = context.new_page()
        log_in(page, hub, "bob", "home")
        page.goto(f"{hub.demo.url}{SERVICE}")
        expect(page.get_by_text("JupyterHub requires JavaScript")).not_to_be_visible()
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.insert_text("0.5")
        page.keyboard.press("Tab")
        page.keyboard.insert_text("A poster")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_have_text(re.compile(r"You asked for 0.5.h for account physics\."))
        screenshots(page, "gpu-time-asked")
        page.goto(f"{hub.demo.url}{SERVICE}administration")
        expect(page.get_by_role("alert")).to_have_text(re.compile("You may not open this page"))
        screenshots(page, "gpu-time-not-allowed")
    finally:
        context.close()


def held(hub: Hub) -> int | None:
    """Return the sum of holds in all budgets, None where the database does not answer."""
    books = Truth(hub).budgets()
    return None if books is None else sum(each.held for each in books.budgets)


def use_per_day_is_a_chart_and_a_table(browser: Browser, page: Page, url: str) -> None:
    """The chart has a bar for today's use, and without JavaScript a table has the same numbers."""
    canvas = page.locator("#chart canvas")
    expect(canvas).to_be_visible()
    assert canvas.evaluate(BARS) > 200
    hours = json.loads(page.locator("#chart-data").text_content() or "")["data"][1]
    used = [hour for hour in reversed(hours) if hour]
    context = browser.new_context(java_script_enabled=False, storage_state=page.context.storage_state())
    try:
        plain = context.new_page()
        plain.goto(url)
        expect(plain.locator("#chart canvas")).to_have_count(0)
        plain.get_by_text("The same as a table").click()
        cells = plain.locator(".quota-days tbody td:last-child")
        expect(cells.first).to_be_visible()
        assert [in_hours(cell) for cell in cells.all_text_contents()] == [
            pytest.approx(hour, abs=0.01) for hour in used
        ]
    finally:
        context.close()


def in_hours(output: str) -> float:
    number, unit = output.split()
    return float(number) / {"h": 1, "s": 3600}[unit]


def accounts_are_listed_with_their_balances(hub: Hub, page: Page) -> None:
    """Each account of the list shows its balance; an account that needs a grant and has none shows nothing left."""
    page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=a100")
    lines = page.locator("#carme-a100-account option")
    expect(lines).to_have_text([re.compile(r"^physics: [\d.]+ h left$"), "teaching: 0 h left"])


def wait_for_charge(page: Page, url: str, within: float = 40.0) -> None:
    """Reload until the session is settled, and nothing is held."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        page.goto(url)
        if page.locator(".quota-words").first.get_by_text("0 h held", exact=True).count():
            return
        time.sleep(0.5)
    raise AssertionError("the session was not charged")
