"""A shared folder from the invitation to the end of access, between alice, bob and tina, in three browsers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

from playwright.sync_api import Page, expect
from rig.hub import Hub, wait_for
from windows import screenshots

NAME = "beetles"
SESSION = {"profile": "cpu", "cpus": 1, "memory_gib": 2, "time_minutes": 20}


def said(page: Page) -> object:
    """Return what the page says of the last form."""
    return expect(page.get_by_role("status").first)


def can_read(user: str, path: str) -> bool:
    """Return whether somebody with a login on the cluster reads a file, as by ssh."""
    argv = ["/usr/sbin/runuser", "-u", user, "--", "/bin/cat", path]
    return subprocess.run(argv, capture_output=True, cwd="/").returncode == 0


def test_three_people_share_a_folder_until_one_is_shut_out(hub: Hub, people: Callable[[str], Page]) -> None:
    hub.restart(CARME_SANDBOX_FOLDERS="1")
    ready = "/services/folders/api/v1/openapi.json"
    wait_for(lambda: hub.request("GET", ready).status == 200, 60, "the folders service")
    url = f"{hub.demo.url}/services/folders/"
    alice, bob, tina = people("alice"), people("bob"), people("tina")
    alice.get_by_role("button", name="Services").click()
    alice.get_by_role("link", name="folders", exact=True).click()
    expect(alice.get_by_role("heading", name="My folders", level=1)).to_be_visible()
    screenshots(alice, "folders-none")
    alice.get_by_label("Name", exact=True).fill(NAME)
    alice.get_by_label("What is in it (may be empty)").fill("Genomes of beetles, and what was found in them")
    alice.get_by_role("button", name="Make it").click()
    expect(alice.get_by_role("heading", name=NAME, level=1)).to_be_visible()
    for name, access in (("bob", "reads and writes"), ("tina", "reads")):
        alice.get_by_label("Name", exact=True).fill(name)
        alice.get_by_label("Access").select_option(label=access)
        alice.get_by_role("button", name="Invite", exact=True).click()
        said(alice).to_contain_text(f"{name} is invited.")
    path = alice.locator("#folder-facts code").nth(1).inner_text()

    bob.goto(url)
    expect(bob.get_by_role("heading", name="Invitations")).to_be_visible()
    screenshots(bob, "folders-invited", dark=True)
    bob.get_by_role("button", name="Accept").click()
    said(bob).to_contain_text("is shared with you")
    tina.goto(url)
    tina.get_by_role("button", name="Accept").click()
    said(tina).to_contain_text("is shared with you")
    screenshots(tina, "folder-of-a-member")

    bob.goto(f"{hub.demo.url}/hub/spawn/bob")
    control = bob.get_by_label(f"Shared folder {NAME}").locator("visible=true").first
    expect(control).to_be_visible()
    control.select_option(label="read and write")
    screenshots(bob, "folders-in-the-form", at=control)
    hub.start_server("bob", folders=f"{NAME}:rw", **SESSION)
    subprocess.run(["/usr/sbin/runuser", "-u", "bob", "--", "/usr/bin/touch", f"{path}/found"], check=True, cwd="/")
    assert can_read("tina", f"{path}/found")
    assert can_read("bob", f"{path}/found")

    alice.goto(f"{url}folder/{NAME}")
    expect(alice.get_by_text(re.compile("bob, the default server"))).to_be_visible()
    screenshots(alice, "folder-of-its-owner", dark=True)
    alice.get_by_role("button", name="End access of bob…").click()
    expect(alice.get_by_role("heading", name="End the access of bob?")).to_be_visible()
    screenshots(alice, "folder-end-access")
    alice.get_by_role("button", name="End it").click()
    said(alice).to_contain_text("1 running session has it still.")
    assert not can_read("bob", f"{path}/found")
    assert can_read("tina", f"{path}/found")
    expect(alice.get_by_text("its user's access has ended")).to_be_visible()
    screenshots(alice, "folder-access-ended")
    alice.get_by_role("button", name="End the sessions whose access has ended…").click()
    expect(alice.get_by_text("What is not saved in them is lost.")).to_be_visible()
    alice.get_by_role("button", name="End them").click()
    said(alice).to_contain_text("1 session is being ended.")
    wait_for(lambda: hub.server("bob") is None, 60, "bob's session to end")
    bob.goto(url)
    expect(bob.get_by_text("You have no folder yet, and none is shared with you.")).to_be_visible()
    bob.goto(f"{hub.demo.url}/hub/spawn/bob")
    expect(bob.get_by_role("heading").first).to_be_visible()
    expect(bob.get_by_label(f"Shared folder {NAME}")).to_have_count(0)

    alice.goto(f"{url}folder/{NAME}")
    alice.get_by_text("Describe it, or publish it as a dataset").click()
    alice.get_by_label("Licence").fill("CC-BY-4.0")
    alice.get_by_label("File of checksums in it").fill("SHA256SUMS")
    alice.get_by_label("It is a dataset").check()
    alice.get_by_label("Publish it").check()
    alice.get_by_role("button", name="Save").click()
    said(alice).to_contain_text("It is changed.")
    bob.goto(f"{url}datasets")
    bob.get_by_role("searchbox").fill("beetles cc-by")
    bob.get_by_role("button", name="Search").click()
    screenshots(bob, "datasets")
    bob.get_by_role("button", name="Put it on my list").click()
    said(bob).to_contain_text("is on your list")

    alice.goto(f"{url}folder/{NAME}")
    script = f"cd {path} && mkdir -p images && head -c 2000000 /dev/zero > images/all && sha256sum found > SHA256SUMS"
    subprocess.run(["/usr/sbin/runuser", "-u", "alice", "--", "/bin/sh", "-c", script], check=True, cwd="/")
    for button, words in (
        ("Compare it with its checksums by a job", "its file is as listed"),
        ("Measure it", "images: "),
    ):
        alice.get_by_role("button", name=button).click()
        said(alice).to_contain_text("The job ")

        def found(words: str = words) -> bool:
            alice.goto(f"{url}folder/{NAME}")
            return alice.get_by_text(words).count() > 0

        wait_for(found, 60, words)
    screenshots(alice, "folder-disk-and-checksums")

    alice.goto(f"{url}folder/{NAME}")
    alice.get_by_text("Delete it", exact=True).click()
    alice.get_by_label("Type its name to delete it").fill(NAME)
    alice.get_by_role("button", name=f"Delete {NAME}").click()
    said(alice).to_contain_text(f"The folder {NAME} is deleted.")
