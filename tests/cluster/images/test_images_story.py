"""An image's life on a real cluster: found, fetched to a node's disk, offered, started, measured, retired."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from session_parts import SessionOnNode

from carme_hub.cli.nodes.install_images import write
from carme_hub.node.images import copy

API, PAGES = "/services/images/api/v1", "/services/images"
DIGEST = "sha256:" + "c" * 64


class Site:
    """A hub with a store, on nodes that keep copies; ada administers."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.store, self.local = hub, folder / "store", folder / "local"
        self.ada, self.alice = hub.login("ada"), hub.login("alice")
        self.programs, self.config = folder / "node", folder / "node-images.conf"
        self.token = str(hub.api("POST", "/users/ada/tokens", {"note": "test"}).body["token"])

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the service as ada."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        answer = self.hub.request(method, f"{API}/{path}", json.dumps(body) if body is not None else None, headers)
        assert answer.status == 200, answer
        return answer.body

    def image(self, name: str) -> Any:
        """Return one image as ada sees it."""
        return self.rest("GET", f"images/{name}")

    def line(self, image: str) -> str:
        """Return what alice's form says of an image."""
        path = f"/hub/api/carme/availability?profile=cpu&image={image}"
        return str(self.alice.request_api("GET", path).body["profiles"]["cpu"]["image"])

    def held(self) -> dict[str, Any]:
        """Return what the nodes have, which on this one machine have one disk; {} = nothing of this digest."""
        argv = [str(self.programs / "carme-node-images"), "list", "--config", str(self.config)]
        listed = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)
        return next((each for each in listed if each["digest"] == DIGEST), {})

    @contextmanager
    def prolog(self) -> Iterator[None]:
        """Let Slurm's Prolog call ours too, as a site's script does."""
        self.config.write_text(f"[images]\nstores = {self.store}\ninto = {self.local}\nfree_percent = 1\n")
        write(self.programs, str(self.config))
        script = self.hub.cluster.layout.node_programs / "carme-stage-prolog"
        text = script.read_text()
        script.write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\n{self.programs}/carme-image-prolog\n"))
        try:
            yield
        finally:
            script.write_text(text)


def describe(image: Path) -> None:
    """Give an image a digest and the listing by which a copy is proved, as the store's own program does."""
    found, size, files = hashlib.sha256(), 0, 0
    for entry, _ in copy.walk(str(image)):
        if entry[0] in copy.OWN_FILES:
            continue
        if entry[1] == "f":
            size, files = size + entry[3], files + 1
            entry.append(hashlib.sha256((image / entry[0]).read_bytes()).hexdigest())
        found.update(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
    said = {"name": "orchid", "description": "Of the store", "format": "dir", "base": "host", "digest": DIGEST}
    said |= {"listing": f"sha256:{found.hexdigest()}", "size_bytes": size, "files": files}
    (image / "image.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def site(demo_hub: Hub) -> Iterator[Site]:
    # Not below pytest's own folder, which each pytest that starts closes to other users.
    with TemporaryDirectory(prefix="carme-test-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        image = folder / "store" / "orchid"
        image.parent.mkdir(mode=0o755)
        facts = json.loads((demo_hub.demo.folder / "facts.json").read_text())
        [listed] = [each for each in facts["images"] if each["name"] == "default"]
        subprocess.run(["cp", "-a", listed["path"], str(image)], check=True)
        describe(image)
        local = str(folder / "local")
        demo_hub.restart(CARME_SANDBOX_IMAGES=str(image.parent), CARME_SANDBOX_NODE_IMAGES=local)
        found = Site(demo_hub, folder)
        wait_for(lambda: '"name": "orchid"' in json.dumps(found.rest("GET", "images")), 60, "the catalogue")
        with found.prolog():
            yield found
        demo_hub.stop_all()
        demo_hub.restart()


def test_an_image_lives_from_its_offer_to_its_retirement(site: Site) -> None:
    orchid = site.image("orchid")
    assert orchid["inside"]["python"].startswith("3.")
    assert orchid["inside"]["jupyterlab"]
    assert orchid["fetch"]["there"] == 0
    assert "orchid" not in str(site.alice.get("/hub/spawn").body)

    site.rest("PUT", "images/orchid/offers", {"to": "user", "name": "alice"})
    wait_for(lambda: "orchid – Of the store" in str(site.alice.get("/hub/spawn").body), 20, "the offer in the form")
    assert site.line("orchid").startswith("Image orchid: has to be fetched first ("), "no node has said what it has"

    assert not site.held()
    site.hub.start_server("alice", profile="cpu", image="orchid")
    fetched = site.held()
    assert fetched["seconds"] > 0, "by Slurm's Prolog, before the session began"
    session = SessionOnNode.of(site.hub, "alice")
    place = str(site.local / DIGEST.replace(":", "-"))
    assert f"{place}/opt" in session.document["plan"]["argv"], "it uses the node's copy"
    jobs = site.hub.cluster.run("scontrol", "show", "job", str(session.row.job_id)).stdout
    assert f"Comment=carme-image={DIGEST}" in jobs, "by which a Prolog knows what to fetch"
    wait_for(lambda: site.image("orchid")["start_seconds"], 90, "its measured start")
    assert site.image("orchid")["users"] == ["alice"]

    date = int(time.time()) + 86400
    site.rest("PUT", "images/orchid/retirement", {"date": date, "reason": "Use orchid-2."})
    wait_for(lambda: "Use orchid-2." in str(site.alice.get("/hub/home").body), 30, "the message on alice's page")
    site.rest("PUT", "images/orchid/retirement", {"date": int(time.time()) - 60, "reason": "Use orchid-2."})
    wait_for(lambda: "orchid" not in site.line("orchid"), 20, "the form without it")
    assert site.hub.server("alice"), "the session keeps it"
    site.hub.stop_server("alice")
    assert site.held()["at"] == fetched["at"]
    answer = site.hub.begin("alice", profile="cpu", image="orchid")
    assert answer.status == 400, answer
    assert "is not an image of this profile" in str(answer.body)
