"""A day of two users on their home pages and in JupyterLab, with an administrator, and a hub that is killed.

Alice trains in a session, is told something by an administrator, stops her training in JupyterLab's panel, and goes
away: the session is idle, warned, kept from JupyterLab, warned again, and stopped, and the page says what she got back.
Bob has a job array from the command line. Its past is forged (``rig.forged_idle``) where a rule takes ten minutes.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect
from rig.forged_idle import IdlePast, in_force, not_in_force
from rig.hub import Hub, wait_for
from rig.training import Lab
from rig.truth import Truth
from windows import screenshot, screenshots

pytestmark = pytest.mark.nightly
MARK = secrets.token_hex(3)
#: Milliseconds: what the session's server asks the hub for, it asks once a minute.
ARRIVES = 150_000
TRAINS = f"""%%distributed -n 1 --gpus-per-task 0 --name day-{MARK}
import time
from carme_hub.training import here
for number in range(6000):
    here.step(number, total=6000, loss=1 / (1 + number / 50))
    time.sleep(0.1)
"""
ARRAY = "#!/bin/sh\nsleep 900\n"


@pytest.fixture
def lab(hub: Hub) -> Iterator[Lab]:
    """A session of alice with a kernel."""
    found = Lab(hub, "alice", gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    found.check_in_thread("%load_ext carme_hub.training")  # Playwright has the loop of this thread
    yield found
    not_in_force(hub)


@pytest.fixture
def array(hub: Hub) -> Iterator[int]:
    """A job array of bob from the command line."""
    job = hub.cluster.sbatch("--mem=50", "--array=0-99%2", f"--job-name=sweep-{MARK}", user="bob", script=ARRAY)
    yield job
    hub.cluster.run("scancel", str(job))


def test_two_users_an_administrator_and_a_hub_that_is_killed(
    hub: Hub, lab: Lab, array: int, people: Callable[[str], Page]
) -> None:
    _, thread = lab.begin(TRAINS, 900)
    alice, bob, ada = (people(name) for name in ("alice", "bob", "ada"))
    card = alice.locator("section.carme-session")
    expect(card).to_contain_text(re.compile(rf"day-{MARK}: running, \d+ of 6000, loss 0\.\d+"), timeout=ARRIVES)
    expect(bob.locator("#carme-jobs")).to_contain_text("98 waiting, 2 running", timeout=60_000)
    expect(bob.locator("section.carme-session")).to_have_count(0)
    assert f"day-{MARK}" not in bob.content()
    for page, name in ((alice, "alice"), (bob, "bob")):
        page.bring_to_front()
        screenshots(page, f"day-{name}")

    opened = alice.context.new_page()
    opened.goto(f"{hub.demo.url}/user/alice/lab?reset")
    expect(opened.locator(".carme-status")).to_contain_text(re.compile(r"left"), timeout=ARRIVES)
    send_message(ada, hub)
    message = toast(opened, "Message from ada")
    expect(message).to_contain_text("power is tested", timeout=ARRIVES)

    alice.bring_to_front()
    hub.kill()
    expect(alice.locator("#carme-stale")).to_be_visible(timeout=60_000)
    assert Truth(hub).session(Truth(hub).row("alice").id).open
    hub.start()
    expect(alice.locator("#carme-stale")).to_be_hidden(timeout=ARRIVES)
    expect(card).to_contain_text(f"day-{MARK}: running", timeout=ARRIVES)  # the stream comes back by itself
    expect(alice.locator(".carme-message")).to_contain_text("power is tested")
    expect(bob.locator("#carme-jobs")).to_contain_text("98 waiting, 2 running", timeout=60_000)
    opened.bring_to_front()
    message.get_by_role("button", name="Seen").click()
    alice.bring_to_front()
    expect(alice.locator(".carme-message")).to_have_count(0, timeout=60_000)

    opened.bring_to_front()
    stop_the_run_in_the_panel(opened)
    thread.join(60)
    assert not thread.is_alive()
    idle_until_stopped(hub, alice, opened, card)
    assert str(array) in hub.cluster.run("squeue", "-h", "-o", "%F").stdout.split()


def send_message(ada: Page, hub: Hub) -> None:
    """Write to all users."""
    ada.goto(f"{hub.demo.url}/hub/carme/console/messages")
    ada.get_by_role("link", name="Write a message…").click()
    ada.get_by_label("Name").fill("alice")
    ada.get_by_label("Text").fill("The power is tested at noon")
    ada.get_by_label("Reason").fill("A test")
    ada.get_by_role("button", name="Send it").click()
    expect(ada.get_by_role("alert")).to_contain_text("is on its way")


def toast(page: Page, text: str) -> Locator:
    """Return a warning in JupyterLab."""
    return page.locator(".Toastify__toast").filter(has_text=text).first


def stop_the_run_in_the_panel(page: Page) -> None:
    """Stop the training beside what the session uses."""
    page.locator(".carme-status").click()
    panel = page.locator("#carme-activity")
    expect(panel).to_contain_text(re.compile(rf"day-{MARK}: running"), timeout=60_000)
    screenshot(page, "day-lab-panel")
    panel.get_by_role("button", name=f"Stop: day-{MARK}").click()
    page.locator(".jp-Dialog").get_by_role("button", name="Stop it").click()
    expect(panel).not_to_contain_text(f"day-{MARK}: running", timeout=60_000)


def idle_until_stopped(hub: Hub, home: Page, lab: Page, card: Locator) -> None:
    """Leave the session alone, keep it once by the button of JupyterLab's warning, and leave it alone again."""
    idle = IdlePast(hub, Truth(hub).row("alice"))
    idle.forge_minutes()
    in_force(hub)
    idle.wait_state(150, "warn")
    warning = toast(lab, "so it is stopped in")
    expect(warning).to_be_visible(timeout=ARRIVES)
    screenshot(lab, "day-lab-idle")
    expect(card.get_by_role("button", name="I am still here (1 time left)")).to_be_visible(timeout=ARRIVES)
    home.bring_to_front()
    screenshots(home, "day-idle")
    lab.bring_to_front()
    warning.get_by_role("button", name="I am still here").click()
    wait_for(lambda: idle.state()["deadline"] - time.time() > 500, 60, "its time to begin anew")
    idle.move_events_back(540)  # nine minutes pass
    wait_for(lambda: idle.events().count("warned") == 3, 400, "both warnings, again")
    assert Truth(hub).session(idle.id).open
    wait_for(lambda: not Truth(hub).session(idle.id).open, 400, "the session to be stopped")
    assert idle.events()[-2:] == ["ending", "ended"]
    home.bring_to_front()
    ended = home.locator("#carme-ended-sessions li").first
    expect(ended).to_contain_text("It was idle for", timeout=ARRIVES)
    expect(ended).to_contain_text("were given back", timeout=ARRIVES)
    screenshots(home, "day-idle-ended")
    said = re.search(r"([0-9.]+) virtual GPU-hours that were held", ended.inner_text())
    assert said is not None
    assert abs(float(said[1]) - idle.given_back()) < 0.01
