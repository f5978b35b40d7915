"""A terminal of JupyterLab finds the image's own programs, in each runtime."""

from __future__ import annotations

import json
import pwd
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page
from rig.changed import changed_hub
from rig.hub import Hub, wait_for
from rig.truth import Truth
from windows import log_in, screenshot

from carme_hub.sandbox.images.apptainer import ensure_apptainer
from carme_hub.sandbox.images.build import build_full_image

#: Runtimes that run here, and their programs; all but the first have an image that holds a whole system.
KINDS = {
    "bubblewrap": "bwrap",
    "bubblewrap-full": "bwrap",
    "charliecloud": "ch-run",
    "apptainer": "apptainer",
    "podman": "podman",
}
MORE = """
from carme_hub.containers import registry
from carme_hub.containers.apptainer import Apptainer
registry.RUNTIMES = {{**registry.RUNTIMES, "apptainer": Apptainer({apptainer!r})}}

spawner = c.SlurmContainerSpawner
spawner.images = [*spawner.images, {{"name": "full", "path": {full!r}}}]
spawner.podman_engine, spawner.podman_device = "runc", ""  # as tests/cluster/test_containers.py says
kinds = {{"slug": "", "display_name": "", "partition": "interactive", "cpus": 1, "memory_gib": 2}}
for kind in {kinds!r}:
    images = [] if kind == "bubblewrap" else ["full"]
    spawner.profile_list.append({{**kinds, "slug": kind, "display_name": kind, "images": images}})

def hook(spawner):
    spawner.container_runtime = spawner.user_options["profile"].partition("-")[0]

spawner.pre_spawn_hook = hook
"""


@pytest.fixture(scope="module")
def runtimes(demo_hub: Hub) -> Iterator[Hub]:
    """A hub whose profiles name runtimes, with a server of alice in each."""
    more = MORE.format(apptainer=str(ensure_apptainer()), full=str(build_full_image()), kinds=[*KINDS])
    demo_hub.stop_all()
    with changed_hub(demo_hub, more) as hub:
        for kind in KINDS:
            answer = hub.begin("alice", kind, profile=kind)
            assert answer.status in (201, 202), answer
        yield hub


def in_terminal(page: Page, user: str, line: str) -> str:
    """Type a line into the open terminal and return its output, by a file in the user's home."""
    printed = Path(pwd.getpwnam(user).pw_dir) / f"said-{uuid.uuid4().hex[:8]}.txt"
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type(f"({line}) >{printed}.part 2>&1; mv {printed}.part {printed}")
    page.keyboard.press("Enter")
    wait_for(printed.exists, 60, f"{line} to end")
    text = printed.read_text()
    printed.unlink()
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_finds_the_images_programs(runtimes: Hub, window: BrowserContext, kind: str) -> None:
    runtimes.wait_server("alice", kind)
    session = Path(pwd.getpwnam("alice").pw_dir, ".carme/sessions", Truth(runtimes).row("alice", kind).id)
    plan = json.loads((session / "data.json").read_text())["plan"]
    assert Path(plan["argv"][0]).name == KINDS[kind]
    page = window.new_page()
    log_in(page, runtimes, "alice", "home")
    page.goto(f"{runtimes.demo.url}/user/alice/{kind}/lab?reset")
    page.get_by_title("Start a new terminal session").first.click()
    page.locator(".xterm-screen").first.wait_for(timeout=60_000)
    assert in_terminal(page, "alice", "command -v python pip carme-hub").split() == [
        f"/opt/venv/bin/{name}" for name in ("python", "pip", "carme-hub")
    ]
    assert "carme_hub" in in_terminal(page, "alice", "python -c 'import carme_hub; print(carme_hub.__name__)'")
    assert "usage" in in_terminal(page, "alice", "carme-hub runs --help").lower()
    screenshot(page, f"terminal-{kind}")
