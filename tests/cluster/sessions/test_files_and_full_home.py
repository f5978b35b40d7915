"""A session whose home is full starts, computes and says so; and its file page takes uploads and gives archives."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import pwd
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.faults import server_process
from rig.hub import Hub, wait_for
from rig.truth import Truth

#: Of a user who has no other sessions: homes are the same for all sandboxes of this machine.
HOME = Path("/home/ada")
TUS = {"Tus-Resumable": "1.0.0"}


@contextlib.contextmanager
def full_home() -> Iterator[None]:
    """Mount a file system of 200 KiB over the home, and fill it."""
    who = pwd.getpwnam("ada")
    owned = f"uid={who.pw_uid},gid={who.pw_gid},mode=700,size=200k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", owned, "tmpfs", HOME], check=True)
    try:
        with contextlib.suppress(OSError), (HOME / "mine").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        os.chown(HOME / "mine", who.pw_uid, who.pw_gid)
        yield
    finally:
        subprocess.run(["umount", "--lazy", HOME], check=True)


@pytest.fixture
def hub(site: Hub) -> Iterator[Hub]:
    site.login("ada")
    yield site
    site.stop_all()


def ask(hub: Hub, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> Any:
    """Ask the session's server through the proxy, with an administrator's token; return status, headers and body."""
    url = f"http://127.0.0.1:{hub.demo.ports['public']}{path}"
    token = {"Authorization": f"token {hub.token}"}
    request = urllib.request.Request(url, body, {**token, **(headers or {})}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.headers, answer.read()


def test_a_session_whose_home_is_full_starts_computes_and_says_so(hub: Hub) -> None:
    with full_home():
        hub.start_server("ada", profile="cpu")
        id = Truth(hub).row("ada").id
        environ = Path(f"/proc/{server_process(id)}/environ").read_bytes().decode().split("\0")
        assert "CARME_HOME_FULL=1" in environ
        kernel = hub.new_kernel("ada")
        code = "import os; print(6 * 7, os.path.getsize(os.path.expanduser('~/mine')) > 100_000)"
        assert "42 True" in hub.run_cell("ada", kernel, code)
        assert hub.server_api("GET", "ada", "", "/carme/activity").body["home_full"] is True
        _, _, page = ask(hub, "GET", "/user/ada/carme/files")
        assert "Your home was full when this session started" in page.decode()
        assert Path(f"/tmp/carme-{id}").is_dir()
        save = "with open(os.path.expanduser('~/result'), 'w') as file: print(file.write('x' * 50_000))"
        assert "No space left" in hub.run_cell("ada", kernel, save)
        (HOME / "mine").unlink()
        assert "50000" in hub.run_cell("ada", kernel, save)
        assert (HOME / "result").stat().st_size == 50_000, "saved at once, in the same session"
        hub.stop_server("ada")
        wait_for(lambda: not Truth(hub).row("ada").open, 60, "the session to be closed")
        wait_for(lambda: not Path(f"/tmp/carme-{id}").exists(), 30, "the node's folder to be removed")
        log = HOME / f".carme/sessions/{id}/job.log"
        wait_for(log.exists, 30, "the log to be at home")
        assert "your home is full: this session keeps its files in /tmp/carme-" in log.read_text()


def test_files_go_up_in_parts_and_come_down_as_an_archive_through_the_hubs_proxy(hub: Hub) -> None:
    hub.start_server("ada", profile="cpu")
    folder = HOME / "of-the-file-page"
    content = os.urandom(3 << 20)
    try:
        coded = ",".join(
            f"{name} {base64.b64encode(value.encode()).decode()}"
            for name, value in (("relativePath", "of-the-file-page/data.bin"), ("folder", str(HOME)))
        )
        head = {**TUS, "Upload-Length": str(len(content)), "Upload-Metadata": coded}
        status, headers, _ = ask(hub, "POST", "/user/ada/carme/uploads", head, b"")
        where = headers["Location"]
        assert (status, where.startswith("/user/ada/carme/uploads/")) == (201, True)
        kind = {"Content-Type": "application/offset+octet-stream"}
        for start in (0, 1 << 20, 2 << 20):
            part = content[start : start + (1 << 20)]
            status, _, _ = ask(hub, "PATCH", where, {**TUS, **kind, "Upload-Offset": str(start)}, part)
            assert status == 204
        file = folder / "data.bin"
        assert file.read_bytes() == content
        assert (file.owner(), file.stat().st_mode & 0o077) == ("ada", 0), "as the user, by the user's umask"
        _, headers, packed = ask(hub, "GET", f"/user/ada/carme/files/archive?folder={folder}&format=tar")
        assert headers["Content-Disposition"].endswith("of-the-file-page.tar")
        with tarfile.open(fileobj=io.BytesIO(packed)) as found:
            assert found.extractfile("of-the-file-page/data.bin").read() == content  # type: ignore[union-attr]
        status, _, _ = ask(hub, "PUT", "/hub/api/carme/users/ada/disk", {}, _measured())
        assert status == 200
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def _measured() -> bytes:
    return b'{"root": "/home/ada", "bytes": 5, "files": 1, "complete": true, "folders": []}'
