"""VS Code in the browser, by a real code-server: it loads behind the hub, opens a file, and gets no secret.

The download is 600 MB, so this is run by hand: ``CARME_TEST_CODE_SERVER`` is the folder of an image that has it, which
docs/howto/add-an-image.md says how to make.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Response, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import log_in, screenshot

from carme_hub.containers.images import as_setting, read_image

IMAGE = os.environ.get("CARME_TEST_CODE_SERVER", "")
pytestmark = pytest.mark.skipif(not IMAGE, reason="CARME_TEST_CODE_SERVER names no image with code-server")
#: Homes are shared by all sandboxes of a machine.
NAME = f"code-{uuid.uuid4().hex[:8]}"
#: All that processes of code-server listen on.
LISTENING = "for pid in $(pgrep -f /opt/code-server); do ss -Hlntxp | grep pid=$pid,; done; true"


@pytest.fixture
def lab(hub: Hub) -> Iterator[Lab]:
    facts = hub.demo.folder / "facts.json"
    before = facts.read_text()
    printed = json.loads(before)
    image = as_setting(read_image(Path(IMAGE)))
    facts.write_text(json.dumps(printed | {"images": [*printed["images"], image]}))
    hub.restart()
    found = Lab(hub, "tina", profile="cpu", image=image["name"], cpus=2, memory_gib=4)
    yield found
    found.stop()
    facts.write_text(before)
    hub.restart()


def test_code_server_loads_behind_the_hub_and_gets_no_secret(lab: Lab, window: BrowserContext) -> None:
    hub = lab.hub
    lab.check_in_thread(f"import os; os.mkdir('{NAME}'); open('{NAME}/hello.py', 'w').write('greeting = 1\\n')")
    page = window.new_page()
    log_in(page, hub, "tina", "home")
    page.goto(f"{hub.demo.url}/user/tina/lab?reset")
    card = page.locator('.jp-LauncherCard[title^="VS Code"]').first
    card.wait_for(timeout=120_000)
    sockets: list[str] = []
    missing: list[str] = []

    def note(answer: Response) -> None:
        if answer.status >= 400:
            missing.append(f"{answer.status} {answer.url}")

    with window.expect_page() as opened:
        card.click()
    opened.value.close()
    folder = f"~tina/{NAME}"
    code = window.new_page()
    code.on("websocket", lambda socket: sockets.append(socket.url))
    code.on("response", note)
    code.goto(f"{hub.demo.url}/user/tina/vscode/?folder={Path(folder).expanduser()}", timeout=120_000)
    file = code.get_by_role("treeitem", name=re.compile("hello.py")).first
    expect(file).to_be_visible(timeout=120_000)
    file.dblclick()
    expect(code.locator(".view-lines").first).to_contain_text("greeting", timeout=60_000)
    screenshot(code, "code-server")
    assert sockets
    code.keyboard.press("Control+End")
    code.keyboard.type("answer = 42\n")
    code.keyboard.press("Control+s")
    wait_for(
        lambda: "answer = 42" in lab.check_in_thread(f"print(open('{NAME}/hello.py').read())"),
        20,
        "the file to be saved",
    )
    code.keyboard.press("Control+Shift+Backquote")
    terminal = code.locator(".xterm").first
    expect(terminal).to_be_visible(timeout=60_000)
    code.wait_for_timeout(3000)
    code.keyboard.type(f"echo in-$((40+2)) > {NAME}.txt; mv {NAME}.txt said.txt\n")
    wait_for(lambda: "True" in lab.check_in_thread(f"print(os.path.exists('{NAME}/said.txt'))"), 20, "the terminal")
    assert lab.check_in_thread(f"print(open('{NAME}/said.txt').read())").strip() == "in-42"
    screenshot(code, "code-server-terminal")
    for path in ("proxy/8080/", "absproxy/8080/"):
        answer = window.request.get(f"{hub.demo.url}/user/tina/vscode/{path}")
        assert answer.status == 404, (path, answer.status)
    # Its own processes are the only ones of this container with code-server in their words, and listen on no port.
    found = lab.check_in_thread(
        f"import subprocess\nprint(subprocess.check_output({LISTENING!r}, shell=True, text=True))"
    )
    assert "/vscode.sock" in found
    assert "tcp" not in found, found
    assert "code-server-ipc.sock" not in found  # in the home, where those of other sessions would meet it
    # Microsoft's own part, which no build of others has.
    assert [each for each in missing if "/vsda" not in each] == []
    lab.check_in_thread(f"import shutil; shutil.rmtree('{NAME}')")
