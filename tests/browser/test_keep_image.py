"""What pip has installed in a session is kept as an image from JupyterLab's panel, by the keyboard and on a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect
from rig.hub import Hub
from rig.training import Lab
from rig.user_wheels import UserWheels
from windows import PHONE, screenshot, screenshots

#: Milliseconds: JupyterLab itself, and a job with pip on a busy machine.
LAB, BUILT = 120_000, 180_000
OPEN = "Keep what I have installed as an image…"


def discard_all(hub: Hub, user: str = "alice") -> None:
    """Remove the images of other tests: a user may have few."""
    for each in hub.api("GET", f"/carme/users/{user}/image-builds").body.get("image_builds", []):
        hub.api("DELETE", f"/carme/users/{user}/image-builds/{each['id']}")


def panel(page: Page, hub: Hub) -> Any:
    """Open JupyterLab and the panel."""
    page.goto(f"{hub.demo.url}/user/alice/lab?reset")
    page.locator(".jp-Launcher").first.wait_for(timeout=LAB)
    page.locator(".carme-status").click()
    return page.locator("#carme-activity")


def test_what_is_installed_becomes_an_image_and_the_way_to_it_is_there(hub: Hub, people: Callable[[str], Page]) -> None:
    discard_all(hub)
    wheels = UserWheels()
    wheels.add("carme_tool", "2.0")
    lab = Lab(hub, profile="cpu", image="default", cpus=1)
    alice = people("alice")
    part = panel(alice, hub)

    part.get_by_role("button", name=OPEN).focus()
    alice.keyboard.press("Enter")
    expect(part.get_by_role("alert")).to_contain_text("pip has installed nothing in this session.")
    screenshot(alice, "keep-nothing-installed")
    alice.keyboard.press("Tab")  # from "Look again"
    alice.keyboard.press("Enter")
    expect(part.get_by_role("button", name=OPEN)).to_be_focused()
    expect(part.get_by_role("alert")).to_be_hidden()

    done = json.loads(
        lab.check_in_thread(
            "import json, subprocess\n"
            "print(json.dumps(subprocess.run(['pip', 'install', 'carme_tool'], capture_output=True).returncode))"
        )
    )
    assert done == 0
    alice.keyboard.press("Enter")
    name = part.get_by_label("Name")
    expect(name).to_be_focused()
    expect(part.get_by_role("list", name="Packages")).to_have_text("carme_tool==2.0")
    expect(part).to_contain_text("1 package on top of default")
    alice.keyboard.press("Escape")
    expect(part.get_by_role("button", name=OPEN)).to_be_focused()
    alice.keyboard.press("Enter")
    expect(name).to_be_focused()
    alice.keyboard.type("My Tools")
    alice.keyboard.press("Enter")
    expect(part.get_by_role("alert")).to_contain_text("A name is 1 to 40 lower-case letters")
    expect(name).to_have_attribute("aria-invalid", "true")
    screenshot(alice, "keep-wrong-name")
    name.fill("default")
    expect(part.get_by_role("alert")).to_be_hidden()
    alice.keyboard.press("Enter")
    expect(part.get_by_role("alert")).to_contain_text("Another image is called default.")
    name.fill("from-panel")
    screenshot(alice, "keep-form")
    alice.keyboard.press("Enter")
    expect(part).to_contain_text(re.compile(r"from-panel (waits for its job|is being built)"))
    log = part.get_by_role("log", name="Log of the build")
    expect(log).to_contain_text("image from-panel on top of default", timeout=BUILT)
    screenshot(alice, "keep-building")

    other = alice.context.new_page()  # a page that is opened later
    expect(panel(other, hub)).to_contain_text("from-panel", timeout=30_000)
    other.close()

    expect(part).to_contain_text("from-panel is ready.", timeout=BUILT)
    expect(log).to_contain_text("carme_tool 2.0")
    screenshot(alice, "keep-ready")
    alice.set_viewport_size(PHONE)
    part.get_by_role("link", name="Start a session with from-panel").scroll_into_view_if_needed()
    screenshot(alice, "keep-ready-390")
    with alice.context.expect_page() as opened:
        part.get_by_role("link", name="Start a session with from-panel").click()
    form = opened.value
    form.wait_for_url(re.compile(r"/hub/spawn/alice/from-panel\?opt-image=from-panel"))
    expect(form.locator("#carme-from-link")).to_contain_text("Nothing has been started")
    expect(form.get_by_label("Image", exact=True).locator("visible=true").first).to_have_value("from-panel")

    code = "import carme_tool, json; print(json.dumps([carme_tool.VERSION, carme_tool.__file__]))"
    with_it = Lab(hub, "alice", "from-panel", profile="cpu", image="from-panel", cpus=1)
    version, file = json.loads(with_it.check_in_thread(code))
    assert version == "2.0"
    assert "/.carme/images/" in file
    discard = hub.api("GET", "/carme/users/alice/image-builds").body["image_builds"]
    assert [each["state"] for each in discard] == ["ready"]
    hub.stop_all()
    discard_all(hub)


def test_a_build_that_fails_says_why_and_can_be_tried_again(hub: Hub, people: Callable[[str], Page]) -> None:
    discard_all(hub)
    wheels = UserWheels()
    wheels.add("carme_gone", "1.0")
    lab = Lab(hub, profile="cpu", image="default", cpus=1)
    code = "import subprocess; print(subprocess.run(['pip', 'install', 'carme_gone'], capture_output=True).returncode)"
    assert lab.check_in_thread(code).strip() == "0"
    (wheels.home / "wheels/carme_gone-1.0-py3-none-any.whl").unlink()
    alice = people("alice")
    part = panel(alice, hub)
    part.get_by_role("button", name=OPEN).click()
    part.get_by_label("Name").fill("gone")
    part.get_by_role("button", name="Build it").click()
    with alice.context.expect_page() as opened:
        part.get_by_role("link", name="Its page").click()
    page = opened.value
    expect(page.get_by_role("status").first).to_contain_text("It is not built.", timeout=BUILT)  # without a click
    expect(page.get_by_label("Log")).to_contain_text("pip did not install the packages")
    screenshots(page, "keep-failed-page")
    page.get_by_role("link", name="Change it, and build it again").click()
    expect(page.get_by_label("Packages, or what the file says", exact=True)).to_have_value("carme_gone==1.0\n")
    expect(page.get_by_label("Name", exact=True)).to_have_value("gone")
    page.get_by_label("Packages, or what the file says", exact=True).fill("--editable .")
    page.get_by_role("button", name="Build it").click()
    expect(page.get_by_role("alert")).to_be_in_viewport()
    screenshot(page, "keep-again-refused")
    page.close()
    expect(part).to_contain_text("gone is not built.", timeout=BUILT)
    expect(part.get_by_role("log", name="Log of the build")).to_contain_text("pip did not install the packages")
    screenshot(alice, "keep-failed")
    part.get_by_role("button", name="Hide").click()
    expect(part).not_to_contain_text("gone is not built.")
    expect(part.get_by_role("button", name=OPEN)).to_be_focused()
    discard_all(hub)
