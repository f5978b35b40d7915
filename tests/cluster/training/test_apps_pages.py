"""Apps of a real session, at the hub's address: what they receive, who reaches them, and TensorBoard's updates."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import Answer, Hub, Person, wait_for
from rig.training import Lab

TELLS = Path(__file__).with_name("app_that_tells.py").read_text()
APPS = {"tells": {"title": "Tells", "command": ["{python}", "-c", TELLS, "{unix_socket}"], "cookies": ["own"]}}
#: Homes outlive a sandbox and are shared with tests that run beside: these names are of this time only.
USER, FIRST, SECOND, MINE = "tina", *(f"apps-{name}-{uuid.uuid4().hex[:8]}" for name in ("first", "second", "mine"))
#: Writes one scalar of each of two ranks, as a run does, and says when.
EVENT = """
import sys, time
from pathlib import Path
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writers = {}
def scalar(run, value, step):
    for rank in range(2):
        folder = str(Path.home() / ".carme/runs" / run / "tb" / f"rank{rank}")
        writer = writers[folder] = writers.get(folder) or EventFileWriter(folder)
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="loss", simple_value=value + rank)])
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()
    print(time.time())
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.restart(CARME_SANDBOX_APPS=json.dumps(APPS))
    lab = Lab(site, USER, profile="cpu", image="default", cpus=1)
    lab.check(EVENT)
    yield lab
    for folder in (run(FIRST), run(SECOND), run("").parents[1] / MINE):
        shutil.rmtree(folder, ignore_errors=True)
    lab.stop()


def run(name: str) -> Path:
    """Return the folder of a run on the node."""
    return Path(f"~{USER}/.carme/runs/{name}").expanduser()


@pytest.fixture(scope="module")
def tina(lab: Lab) -> Person:
    """Tina's browser, which has cookies of her server."""
    person = lab.hub.login(USER)
    assert person.get(f"/user/{USER}/lab").status == 200
    return person


def ask(lab: Lab, path: str, **headers: str) -> Answer:
    return lab.hub.request(
        "GET", f"/user/{USER}/{path}", headers={"Authorization": f"token {lab.hub.token}", **headers}
    )


def test_the_launcher_offers_what_the_image_has_with_icons(lab: Lab) -> None:
    output = ask(lab, "server-proxy/servers-info").body["server_processes"]
    found = {app["name"]: app for app in output}
    assert {"tensorboard", "tells"} <= set(found)
    assert "vscode" not in found  # the image has no code-server
    icon = lab.hub.request("GET", found["tensorboard"]["launcher_entry"]["icon_url"])
    assert icon.status in (302, 403)  # not without a login
    icon = ask(lab, "server-proxy/icon/tensorboard")
    assert icon.status == 200
    assert str(icon.body).startswith("<svg")


def test_no_port_of_the_node_can_be_reached_through_the_server(lab: Lab) -> None:
    code = (
        "import http.server, threading\n"
        "held = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=held.serve_forever, daemon=True).start()\n"
        "import urllib.request\n"
        "print('port', held.server_port, urllib.request.urlopen(f'http://127.0.0.1:{held.server_port}').status)"
    )
    output = re.search(r"port (\d+) 200$", lab.check(code), re.MULTILINE)  # it answers inside of the session
    assert output
    port = output[1]
    for path in (
        f"proxy/{port}",
        f"proxy/absolute/{port}",
        f"proxy/127.0.0.1:{port}",
        f"proxy/absolute/localhost:{port}",
    ):
        for end in ("", "/", "/?x=1"):
            answer = ask(lab, path + end)
            while answer.status == 302:  # to the same without the slash
                answer = lab.hub.request(
                    "GET", answer.headers["Location"], headers={"Authorization": f"token {lab.hub.token}"}
                )
            assert answer.status == 404, (path + end, answer)


def test_an_app_sees_no_cookie_and_no_token(lab: Lab, tina: Person) -> None:
    tina.cookies |= {"own": "5", "other": "6"}
    answer = tina.get(f"/user/{USER}/tells/a%20b?x=1&y=%20")
    body = json.loads(str(answer.body))
    assert body["path"] == "/a%20b?x=1&y=%20"
    assert body["headers"]["Cookie"] == "own=5"
    assert not {"Authorization", "X-Xsrftoken", "Referer"} & set(body["headers"])
    with_token = ask(lab, f"tells/?token={lab.hub.token}&x=1", Referer=f"http://x/?token={lab.hub.token}").body
    assert with_token["path"] == "/?x=1"
    token = lab.check("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    cookies = [value for name, value in tina.cookies.items() if "jupyterhub" in name and len(value) > 8]
    assert cookies
    for secret in (lab.hub.token, token, *cookies):
        assert secret not in json.dumps([body, with_token])


def test_an_app_sets_no_cookie_but_its_own_below_its_own_path(lab: Lab) -> None:
    answer = ask(lab, "tells/")
    cookies = answer.headers.get("Set-Cookie", "")
    assert f"own=1; Path=/user/{USER}/tells" in cookies
    assert "forged" not in cookies
    assert "foreign" not in cookies
    assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]
    streamed = ask(lab, "tells/", Accept="text/event-stream")
    assert "forged" not in str(streamed.headers)


def test_a_request_that_another_site_forges_is_refused(lab: Lab, tina: Person) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in tina.cookies.items())
    host = f"127.0.0.1:{lab.hub.demo.ports['public']}"
    for headers, status in (
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": f"http://{host}"}, 200),
    ):
        answer = lab.hub.request("POST", f"/user/{USER}/tells/", "x=1", {"Cookie": cookie, **headers})
        assert answer.status == status, (headers, answer)
    with_token = {"Authorization": f"token {lab.hub.token}"}
    assert lab.hub.request("POST", f"/user/{USER}/tells/", "x=1", with_token).status == 200


def test_no_other_user_can_open_an_app(lab: Lab) -> None:
    assert lab.hub.request("GET", f"/user/{USER}/tells/").status in (302, 403)
    bob = lab.hub.login("bob")
    answer = bob.get(f"/user/{USER}/tells/")
    assert answer.status in (302, 403), answer
    assert "environ" not in str(answer.body)


def pids(lab: Lab, words: str) -> list[int]:
    """Return the processes of the session on the node whose command line has these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = lab.session_id.encode() in (path / "environ").read_bytes()
            if ours and words in (path / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def tensorboard(lab: Lab) -> int:
    """TensorBoard's process."""
    lab.session_id = lab.session  # type: ignore[attr-defined]
    assert ask(lab, "tensorboard/").status == 200
    [pid] = pids(lab, "carme-tensorboard.py")
    return pid


def test_tensorboard_listens_where_no_other_user_of_the_node_gets(lab: Lab, tensorboard: int) -> None:
    inodes = set()
    for fd in Path(f"/proc/{tensorboard}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink())):
                inodes.add(found[1])
    tcp = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = {line.split()[9] for line in tcp.splitlines() if line.split()[3:4] == ["0A"]}
    assert inodes
    assert listening
    assert not inodes & listening
    [folder] = Path(f"/proc/{tensorboard}/root/tmp").glob("carme-apps-*")
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert oct((folder / "tensorboard.sock").stat().st_mode & 0o077) == "0o0"
    code = (
        "import glob, os, socket, sys\n"
        f"os.chdir('/')\nline = socket.socket(socket.AF_UNIX)\n"
        f"line.connect({str(folder / 'tensorboard.sock')!r})\nline.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "print(line.recv(99))"
    )
    root = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True)
    assert "HTTP" in root.stdout, root.stderr  # so it is this very socket
    bob = subprocess.run(["runuser", "-u", "bob", "--", "/usr/bin/python3", "-c", code], capture_output=True, text=True)
    assert "PermissionError" in bob.stderr, bob


def tensorboard_state(lab: Lab, seen: str = "") -> tuple[str, str]:
    body = ask(lab, f"tensorboard/carme/news?seen={seen}").body
    return str(body["news"]), str(body["shows"])


def scalars(lab: Lab, run: str, rank: int) -> list[float]:
    answer = ask(lab, f"tensorboard/data/plugin/scalars/scalars?run={run}%2Frank{rank}&tag=loss")
    return [value for _, _, value in answer.body] if answer.status == 200 else []


def test_tensorboard_follows_the_newest_run_and_shows_an_event_within_a_second(lab: Lab, tensorboard: int) -> None:
    lab.check(f"scalar({FIRST!r}, 0.5, 0)")
    wait_for(lambda: scalars(lab, FIRST, 0) == [0.5], 5, "the first scalar")
    assert tensorboard_state(lab)[1] == f"Showing run {FIRST}, the newest"
    wait_for(lambda: scalars(lab, FIRST, 1) == [1.5], 5, "that of the other rank")
    waits = []
    for step in range(1, 6):
        seen, _ = tensorboard_state(lab)
        _, thread = lab.begin(f"import time; time.sleep(0.5); scalar({FIRST!r}, {step / 8}, {step})")
        while True:  # of the step before there may be news still
            body, _ = tensorboard_state(lab, seen)
            received = time.time()
            assert body != seen
            seen = body
            if len(scalars(lab, FIRST, 0)) == step + 1:
                break
        thread.join(20)
        waits.append(received - max(path.stat().st_mtime for path in (run(FIRST) / "tb/rank0").rglob("*tfevents*")))
    print("seconds from an event to its news:", [round(wait, 2) for wait in waits])
    assert max(waits) < 1, waits
    time.sleep(1.1)  # what began later is known by the second in its file's name
    lab.check(f"scalar({SECOND!r}, 0.25, 0)")
    wait_for(lambda: tensorboard_state(lab)[1] == f"Showing run {SECOND}, the newest", 5, "the second run")
    has_curves_of(lab, f"{SECOND}/rank0", f"{SECOND}/rank1")


def has_curves_of(lab: Lab, *expected: str, more: bool = False) -> None:
    """Wait until TensorBoard has curves of these; it may find a run's second file only at its next scan.

    Args:
        more: whether it may have others, too.
    """

    def there() -> bool:
        found = set(ask(lab, "tensorboard/data/runs").body)
        return found >= set(expected) if more else found == set(expected)

    wait_for(there, 5, f"curves of {expected}")


def test_a_form_selects_the_runs_that_tensorboard_shows(lab: Lab, tina: Person) -> None:
    lab.check(f"scalar('../../{MINE}', 0.75, 0)")  # a folder of one's own, beside the runs
    page = str(tina.get(f"/user/{USER}/tensorboard/carme/").body)
    assert f"<option>{FIRST}</option>" in page
    form = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
    cookie = "; ".join(f"{name}={value}" for name, value in tina.cookies.items())

    def choose(fields: str) -> Answer:
        return lab.hub.request("POST", f"/user/{USER}/tensorboard/carme/", fields, {"Cookie": cookie, **form})

    def shows(text: str) -> None:
        wait_for(lambda: tensorboard_state(lab)[1].startswith(text), 5, text)

    refused = choose("show=folder&folder=%3Cb%3E")
    assert refused.status == 400
    assert "There is no folder" in str(refused.body)
    assert "<b>" not in str(refused.body)
    answer = choose(f"show=run&run={FIRST}")
    assert (answer.status, answer.headers["Location"]) == (303, "../"), answer
    shows(f"Showing run {FIRST}")
    has_curves_of(lab, f"{FIRST}/rank0", f"{FIRST}/rank1")
    choose("show=all")
    shows("Showing all runs of this session: ")
    has_curves_of(lab, *(f"{name}/rank{number}" for name in (FIRST, SECOND) for number in range(2)), more=True)
    choose(f"show=folder&folder={MINE}")
    shows(f"Showing {run('').parents[1] / MINE}")
    has_curves_of(lab, "tb/rank0", "tb/rank1")
    choose("show=newest")
    shows(f"Showing run {SECOND}, the newest")
    has_curves_of(lab, f"{SECOND}/rank0", f"{SECOND}/rank1")


def test_a_page_that_only_displays_does_not_count_as_activity(lab: Lab) -> None:
    def active() -> str:
        return str(lab.hub.server_api("GET", USER, "", "/api/status").body["last_activity"])

    ask(lab, "tensorboard/")
    before = active()
    time.sleep(1.1)
    ask(lab, "tensorboard/carme/news")
    assert active() == before
    ask(lab, "tensorboard/")
    assert active() > before


def test_the_gallery_of_templates_is_one_of_them(lab: Lab, tina: Person) -> None:
    answer = tina.get(f"/user/{USER}/templates/")
    assert answer.status == 200
    assert "<h1>New from template</h1>" in str(answer.body)


def test_an_app_that_ended_is_started_again_by_its_next_visitor(lab: Lab, tensorboard: int) -> None:
    os.kill(tensorboard, 9)
    wait_for(lambda: not pids(lab, "carme-tensorboard.py"), 5, "TensorBoard to end")
    wait_for(lambda: ask(lab, "tensorboard/data/environment").status == 200, 10, "TensorBoard to be back")
    assert len(pids(lab, "carme-tensorboard.py")) == 1
