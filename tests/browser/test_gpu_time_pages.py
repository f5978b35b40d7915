"""GPU time for owners and administrators: transfers, corrections, groups, limits in Slurm, trials of a policy."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from rig.hub import Hub
from windows import PHONE, delaying_reload, log_in, screenshots

from carme_hub.sandbox.demo import DEFAULT_POLICY

SERVICE = "/services/quotas/"
#: A group's limits, each member's and all members' together, and what Slurm can keep by itself.
POLICY = {
    "zone": "Europe/Berlin",
    "currency": "EUR",
    "quotas": [
        {"id": "each", "group": "carme-users", "gpu_time": 10, "window": "week"},
        {"id": "together", "group": "carme-users", "gpu_time": 40, "window": "month", "together": True},
        {"id": "gpus", "user": "*", "concurrent_gpus": 4, "time_limit": "12h"},
        {"id": "teaching", "account": "teaching", "needs_grant": True},
    ],
}


@pytest.fixture(autouse=True)
def policy(hub: Hub) -> Iterator[None]:
    hub.demo.set_policy(POLICY)
    yield
    hub.demo.set_policy(DEFAULT_POLICY)


def grant(page: Page, url: str, account: str, hours: str) -> None:
    page.goto(f"{url}accounts/{account}")
    page.get_by_label("GPU-hours").locator("visible=true").fill(hours)
    page.get_by_label("Reason").locator("visible=true").fill("Winter term")
    page.get_by_role("button", name="Grant…").click()
    page.get_by_role("button", name=f"Grant {hours} h").click()
    expect(page.get_by_text(f"{hours} h granted to account {account}.")).to_be_visible()


def correct(page: Page, url: str, user: str, hours: str, reason: str, picture: str = "") -> None:
    """Correct account physics by a negative amount of today's use, on a user's statement."""
    page.goto(f"{url}accounts/physics")
    page.get_by_text("Correct a mistake").click()
    page.get_by_label("Take from the account").check()
    page.locator("#correct-hours").fill(hours)
    page.get_by_label("Statement of").select_option(user)
    page.get_by_label("Day of the use, if any").fill(
        page.get_by_label("Day of the use, if any").get_attribute("max") or ""
    )
    page.get_by_label("Reason, for the statement").fill(reason)
    if picture:
        screenshots(page, f"gpu-pages-{picture}")
    page.get_by_role("button", name="Correct…").click()
    expect(page.get_by_role("heading", name="Write this correction?")).to_be_visible()
    if picture:
        screenshots(page, f"gpu-pages-{picture}-confirm", dark=True)
    page.get_by_role("button", name=f"Take {hours} h").click()
    expect(page.get_by_text(f"{hours} h taken from account physics.")).to_be_visible()


def test_gpu_time_is_moved_and_corrected_with_the_balances_before_and_after(
    hub: Hub, people: Callable[[str], Page]
) -> None:
    url = f"{hub.demo.url}{SERVICE}"
    tina, ada = people("tina"), people("ada")
    grant(ada, url, "teaching", "40")
    tina.goto(f"{url}accounts/teaching")
    tina.get_by_text("Move GPU time to another account").click()
    expect(tina.get_by_text(re.compile("can be moved. Held GPU time"))).to_be_visible()
    tina.get_by_label("To account").fill("physics")
    tina.locator("#move-hours").fill("100000")
    tina.locator("#move-reason").fill("The lab course uses it")
    tina.get_by_role("button", name="Move…").click()
    expect(tina.get_by_role("alert")).to_have_text(re.compile("can be moved, and you asked for 100000.h"))
    screenshots(tina, "gpu-pages-transfer-refused")
    tina.go_back()
    expect(tina.locator("#move-reason")).to_be_visible()
    expect(tina.locator("#move-reason")).to_have_value("The lab course uses it")
    tina.get_by_label("To account").fill("physics")
    tina.locator("#move-hours").fill("12.5")
    screenshots(tina, "gpu-pages-transfer", dark=True)
    tina.get_by_role("button", name="Move…").click()
    expect(tina.get_by_role("heading", name="Move this GPU time?")).to_be_visible()
    expect(tina.get_by_text("not visible to you").first).to_be_visible()
    screenshots(tina, "gpu-pages-transfer-confirm")
    tina.get_by_role("button", name="Move 12.5 h").click()
    expect(tina.get_by_text("12.5 h moved from account teaching to account physics.")).to_be_visible()
    expect(tina.get_by_text("Moved to another account by tina: The lab course uses it.").first).to_be_visible()

    ada.goto(f"{url}accounts/physics")
    expect(ada.get_by_text("Moved here by tina: The lab course uses it.").first).to_be_visible()
    correct(ada, url, "alice", "3.5", "Its job was charged to bob by mistake", "correction")
    expect(ada.get_by_text("Corrected by ada: Its job was charged to bob by mistake").first).to_be_visible()
    screenshots(ada, "gpu-pages-corrected")
    ada.get_by_text("Move GPU time to another account").click()
    ada.get_by_label("To account").fill("teaching")
    ada.locator("#move-hours").fill("1")
    ada.locator("#move-reason").fill("Back")
    ada.get_by_role("button", name="Move…").click()
    expect(ada.get_by_role("row", name=re.compile("^teaching"))).to_be_visible()
    screenshots(ada, "gpu-pages-transfer-confirm-admin")
    ada.get_by_role("link", name="Cancel").click()
    expect(ada.get_by_role("heading", name="Account physics")).to_be_visible()


def test_a_group_shows_its_members_their_share_and_what_they_asked_for(hub: Hub, people: Callable[[str], Page]) -> None:
    url = f"{hub.demo.url}{SERVICE}"
    ada, bob = people("ada"), people("bob")
    people("alice")
    people("tina")
    correct(ada, url, "bob", "1.5", "A job that accounting lost")
    bob.goto(url)
    bob.get_by_text("Ask for more GPU time").first.click()
    bob.get_by_label("GPU-hours").locator("visible=true").fill("8")
    bob.get_by_label("Reason", exact=True).locator("visible=true").fill("A poster for the conference")
    bob.get_by_role("button", name="Ask").locator("visible=true").click()
    bob.goto(f"{url}groups/carme-users")
    expect(bob.get_by_role("alert")).to_have_text(re.compile("you may not see it"))
    ada.goto(f"{url}administration")
    ada.get_by_role("link", name="Groups").click()
    expect(ada.get_by_role("link", name="Groups")).to_have_attribute("aria-current", "page")
    expect(ada.get_by_role("link", name="carme-users")).to_be_visible(timeout=20_000)
    screenshots(ada, "gpu-pages-groups")
    ada.get_by_role("link", name="carme-users").click()
    deadline = time.monotonic() + 40
    members = [ada.get_by_role("rowheader", name=name) for name in ("alice", "bob", "tina")]
    while not all(member.count() for member in members) and time.monotonic() < deadline:
        time.sleep(1)  # the service reads the hub's groups every ten seconds
        ada.goto(f"{url}groups/carme-users")
    expect(ada.get_by_role("heading", name="This week")).to_be_visible()
    expect(ada.get_by_role("rowheader", name="bob").first).to_be_visible()
    expect(ada.get_by_text("Shared by group carme-users.")).to_be_visible()
    expect(ada.get_by_text("A poster for the conference").first).to_be_visible()
    screenshots(ada, "gpu-pages-group", dark=True)
    ada.get_by_role("button", name="Deny").first.click()
    ada.get_by_role("button", name="Deny").click()
    ada.goto(f"{url}administration/groups?q=nowhere")
    expect(ada.get_by_text("No group has “nowhere” in its name.")).to_be_visible()
    screenshots(ada, "gpu-pages-groups-none")


def mirror(hub: Hub, *words: str) -> None:
    """Write Slurm's limits as the hub's administrator does; exit status 1 means that changes remain."""
    demo = hub.demo
    argv = ["runuser", "-u", demo.user, "--", f"{demo.environment}/bin/carme-hub", "quotas", "mirror", *words]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin", "CARME_SANDBOX_HUB": str(demo.folder / "facts.json")}
    done = subprocess.run(
        [*argv, "--config", str(demo.config_file)], env=environment, capture_output=True, text=True, cwd=demo.folder
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout


def test_drift_is_shown_with_the_commands_and_unknown_while_slurm_does_not_answer(
    hub: Hub, people: Callable[[str], Page]
) -> None:
    url, cluster = f"{hub.demo.url}{SERVICE}", hub.cluster
    ada = people("ada")
    try:
        ada.goto(f"{url}administration")
        ada.get_by_role("link", name="Drift").click()
        expect(ada.get_by_role("heading", name="For an administrator of Slurm")).to_be_visible()
        expect(ada.get_by_text("sacctmgr -i add qos carme-teaching")).to_be_visible()
        expect(ada.get_by_role("heading", name="Not written yet")).to_be_visible()
        screenshots(ada, "gpu-pages-drift", dark=True)
        for line in ada.get_by_label("Commands for a Slurm administrator").inner_text().splitlines():
            cluster.run(*line.split())
        ada.reload()
        expect(ada.get_by_role("heading", name="Set by hand, and kept")).to_be_visible()  # by the sandbox
        mirror(hub, "--apply", "--force", "--yes")
        cluster.run("sacctmgr", "-i", "modify", "user", "where", "name=bob", "account=physics", "set",
                    "GrpTRES=gres/gpu=16")  # fmt: skip
        ada.reload()
        expect(ada.get_by_text("Drift: 1 limit was set by hand.")).to_be_visible()
        expect(ada.get_by_role("row").filter(has_text="user physics/bob").first).to_contain_text("16")
        screenshots(ada, "gpu-pages-drift-by-hand")
        mirror(hub, "--apply", "--force", "--yes")
        ada.reload()
        expect(ada.get_by_text("No drift: Slurm’s limits agree with the policy.")).to_be_visible()
        ada.get_by_text(re.compile("that agree with the policy$")).last.click()
        screenshots(ada, "gpu-pages-drift-none")
        cluster.freeze("slurmdbd")
        ada.goto(f"{url}administration/drift", timeout=60_000)
        expect(ada.get_by_role("alert")).to_have_text(re.compile("Unknown: Slurm’s accounting does not answer"))
        screenshots(ada, "gpu-pages-drift-unknown")
    finally:
        cluster.thaw("slurmdbd")
        clear(hub)


def clear(hub: Hub) -> None:
    """Remove the limits again, so that later tests are not affected."""
    run = hub.cluster.run
    run(
        "sacctmgr",
        "-i",
        "modify",
        "account",
        "where",
        "name=teaching",
        "set",
        "QOS=normal",
        "DefaultQOS=-1",
        check=False,
    )
    for account in ("physics", "teaching"):
        where = ("where", f"account={account}")
        run("sacctmgr", "-i", "modify", "user", *where, "set", "GrpTRES=gres/gpu=-1", check=False)
    run("sacctmgr", "-i", "delete", "qos", "where", "name=carme-teaching", check=False)


def test_a_trial_that_takes_long_shows_that_it_is_in_progress(hub: Hub, people: Callable[[str], Page]) -> None:
    url, cluster = f"{hub.demo.url}{SERVICE}", hub.cluster
    hub.start_server("alice", profile="a100", gpus=1, time_minutes=30, account="physics")
    hub.stop_server("alice")
    ada = people("ada")
    ada.goto(f"{url}administration/policy")
    rules = ada.get_by_label(re.compile("Rules, as YAML"))
    rules.fill(rules.input_value().replace("gpu_time: 10\n", "gpu_time: 1s\n"))
    ada.get_by_label("Reason for the change").fill("Less for everybody")
    cluster.freeze("slurmdbd")
    try:
        with delaying_reload(ada, "**/policy/trial/*"):
            ada.get_by_role("button", name="Check and try it…").click()
            expect(ada.get_by_role("heading", name="The policy is being tried")).to_be_visible(timeout=20_000)
            screenshots(ada, "gpu-pages-trial", dark=True)
        expect(ada.get_by_role("heading", name="The policy is being tried")).to_be_visible()
    finally:
        cluster.thaw("slurmdbd")
    expect(ada.get_by_text("would have been refused")).to_be_visible(timeout=60_000)
    expect(ada.get_by_text(re.compile("^Use from .* on counts in the policy’s limits"))).to_be_visible()
    screenshots(ada, "gpu-pages-trial-done")
    ada.get_by_role("link", name="Cancel").click()
    expect(ada.get_by_role("heading", name="Policy")).to_be_visible()


def test_gpu_time_is_moved_by_keyboard_alone_and_without_javascript(
    hub: Hub, browser: Browser, people: Callable[[str], Page]
) -> None:
    url = f"{hub.demo.url}{SERVICE}"
    grant(people("ada"), url, "teaching", "5")
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    try:
        page = context.new_page()
        log_in(page, hub, "tina", "home")
        page.goto(f"{url}accounts/teaching")
        page.get_by_text("Move GPU time to another account").focus()
        page.keyboard.press("Enter")
        for word in ("physics", "0.5", "A poster"):
            page.keyboard.press("Tab")
            page.keyboard.insert_text(word)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Move this GPU time?")).to_be_visible()
        page.get_by_role("button", name=re.compile("Move 0.5")).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_have_text(re.compile("0.5.h moved from account teaching"))
    finally:
        context.close()
