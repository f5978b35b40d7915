"""Sessions that the last two releases started speak with this release's hub: their own programs call its own handlers.

``documents/VERSION.json`` has the batch script and the data document of a session as that release rendered them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_hub import ForgedHub, forged_hub

from carme_hub.cli.upgrade.releases import earlier_releases
from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
from carme_hub.domain.sessions.recovered import read_document
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.handlers import callback
from carme_hub.spawners.handlers.pages import install_handlers
from carme_hub.spawners.job_script import DATA_VERSION, Owner, Server, Site, render

DOCUMENTS = Path(__file__).with_name("documents")
RELEASES = sorted(file.stem for file in DOCUMENTS.glob("*.json"))
NONCE = "a-nonce-of-a-test"


class RegistryThatNotes:
    """What the hub's registry was told by the session's programs."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def current(self, id: str) -> Any:
        return SimpleNamespace(id=id, user="alice")

    async def prove(self, id: str, nonce: str, port: int, node: str) -> None:
        self.said.append(("port", id, nonce, port > 0, node))

    async def server_ended(self, id: str, nonce: str, status: int) -> Any:
        self.said.append(("ended", id, nonce, status))
        return self.current(id)


@pytest.fixture
async def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryThatNotes:
    registry = RegistryThatNotes()

    async def revoke(_session: Any) -> bool:
        return True

    async def node(*_: Any) -> str:
        return "n1"

    log = logging.getLogger("test")
    hub = SimpleNamespace(
        registry=registry, log=log, reconciler=SimpleNamespace(trigger=lambda _id: None), revoke=revoke
    )
    monkeypatch.setattr(callback, "started_hub", lambda: hub)
    monkeypatch.setattr(callback, "allocated_node", node)
    return registry


@pytest.fixture
async def hub(tmp_path: Path, registry: RegistryThatNotes) -> AsyncIterator[ForgedHub]:
    install_handlers()
    async with forged_hub(str(tmp_path)) as hub:
        yield hub


def kept(release: str) -> tuple[str, dict[str, Any]]:
    """Return the batch script and the data document of a session of a release."""
    found = json.loads((DOCUMENTS / f"{release}.json").read_text())
    assert found["release"] == release
    return found["script"], found["document"]


def test_the_documents_of_the_last_two_releases_are_kept_and_their_versions_are_understood() -> None:
    assert [each.release for each in earlier_releases()][-2:] == RELEASES
    assert {kept(release)[1]["version"] for release in RELEASES} | {DATA_VERSION} == {1}
    assert {each.data_version for each in earlier_releases()} == {1}


def test_a_document_says_its_version_and_the_release() -> None:
    server = Server(("jupyterhub-singleuser",), {}, "http://hub/callback", "nonce")
    image, owner = Image("default", "/srv/images/default", "dir"), Owner("alice", 1001, 1001, "/home/alice")
    document = json.loads(
        render("0f9a", owner, Request("cpu", "default"), image, server, Site(runtime("bubblewrap"))).data
    )
    assert document["version"] == DATA_VERSION
    assert document["release"]


@pytest.mark.parametrize("release", RELEASES)
async def test_a_server_of_an_earlier_release_proves_itself_to_this_hub(
    release: str, hub: ForgedHub, registry: RegistryThatNotes, tmp_path: Path
) -> None:
    _, document = kept(release)
    folder = tmp_path / "session"
    folder.mkdir(mode=0o700)
    program = folder / "carme-singleuser"
    program.write_text(document["files"]["carme-singleuser"]["text"])
    own = {**document["singleuser"], "argv": [sys.executable, "-c", "print('SERVER')"], "folder": str(tmp_path)}
    own["callback"] = own["callback"].replace("http://127.0.0.1:@PORT@", f"http://127.0.0.1:{hub.app.hub_port}")
    (folder / "singleuser.json").write_text(json.dumps(own))
    (folder / "singleuser.json").chmod(0o600)
    argv = ["/usr/bin/python3", str(program), str(folder)]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)
    assert "SERVER" in done.stdout, done.stderr
    assert registry.said == [("port", document["session"], NONCE, True, "n1")]


@pytest.mark.parametrize("release", RELEASES)
def test_a_session_of_an_earlier_release_is_found_again_by_its_document(release: str) -> None:
    _, document = kept(release)
    prefix = {"JUPYTERHUB_SERVICE_PREFIX": "/user/alice/", "JUPYTERHUB_API_URL": "https://hub/hub/api"}
    document["singleuser"]["environ"].update(prefix)  # the hub's, which the kept documents lack
    found = read_document(json.dumps(document).encode(), document["session"])
    assert found.server is not None
    assert (found.server.nonce, found.server.prefix, found.exact) == (NONCE, "/user/alice/", False)


async def test_a_batch_script_of_the_last_release_reports_the_end_of_its_server_to_this_hub(
    hub: ForgedHub, registry: RegistryThatNotes, tmp_path: Path
) -> None:
    script, document = kept(RELEASES[-1])
    own = {**document["singleuser"]}
    own["callback"] = own["callback"].replace("http://127.0.0.1:@PORT@", f"http://127.0.0.1:{hub.app.hub_port}")
    (tmp_path / "batch_script.py").write_text(script)
    (tmp_path / "own.json").write_text(json.dumps({"singleuser": own}))
    code = "import json, batch_script; batch_script.tell_hub(json.load(open('own.json')), 7)"
    argv = ["/usr/bin/python3", "-c", code]
    done = await asyncio.to_thread(
        subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert registry.said == [("ended", document["session"], NONCE, 7)], done.stderr + done.stdout
