"""A user's own image on a real cluster: built in a job, used in a session and in a run, offered to a group, removed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab
from rig.user_wheels import UserWheels
from test_images_story import DIGEST, describe

SERVICE = "/services/images/api/v1"
LOOK = (
    "import json, os, carme_tool\n"
    "print(json.dumps([carme_tool.VERSION, carme_tool.__file__, os.environ['CARME_IMAGE_DIGEST']]))"
)


class Site:
    """A hub with a store whose image has a digest, and alice's folder of wheels, which is where her pip looks."""

    def __init__(self, hub: Hub, store: Path) -> None:
        self.hub, self.store = hub, store
        self.wheels = UserWheels()
        self.home = self.wheels.home
        self.wheels.add("carme_tool", "2.0")
        self.token = str(hub.api("POST", "/users/ada/tokens", {"note": "test"}).body["token"])

    def rest(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        """Ask the images service, as ada unless somebody else is named."""
        headers = {"Authorization": f"token {token or self.token}", "Content-Type": "application/json"}
        answer = self.hub.request(method, f"{SERVICE}/{path}", json.dumps(body) if body is not None else None, headers)
        assert answer.status == 200, answer
        return answer.body

    def is_in_catalogue(self, name: str) -> bool:
        """Return whether the service has found an image."""
        return name in {each["name"] for each in self.rest("GET", "images")["images"]}

    def builds(self) -> dict[str, Any]:
        """Return alice's images by name, as the hub says."""
        answer = self.hub.api("GET", "/carme/users/alice/image-builds")
        assert answer.status == 200, answer
        return {each["name"]: each for each in answer.body["image_builds"]}

    def wanted(self, id: str) -> Any:
        """Return what an administrator sees of an offer that waits for them."""
        [found] = [each["wanted"] for each in self.rest("GET", "builds")["builds"] if each["id"] == id]
        return found

    def publish(self, status: int = 0) -> str:
        """Publish what is due, as root does; return what the command said."""
        argv = [str(self.hub.demo.environment / "bin/carme-hub"), "image", "publish", f"--store={self.store}"]
        environ = {"CARME_SANDBOX_HUB": str(self.hub.demo.folder / "facts.json"), "PATH": "/usr/bin:/bin:/usr/sbin"}
        environ["CARME_SANDBOX_IMAGES"] = str(self.store)
        argv += [f"--config={self.hub.demo.config_file}"]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every account can reach; pytest closes its own to others whenever another run begins."""
    with TemporaryDirectory(prefix="carme-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def site(demo_hub: Hub, open_folder: Path) -> Iterator[Site]:
    store = open_folder / "store"
    image = store / ".digests" / DIGEST.replace(":", "-")
    image.parent.mkdir(mode=0o755, parents=True)
    store.chmod(0o755)
    facts = json.loads((demo_hub.demo.folder / "facts.json").read_text())
    [listed] = [each for each in facts["images"] if each["name"] == "default"]
    subprocess.run(["cp", "-a", listed["path"], str(image)], check=True)
    describe(image)
    (store / "torch").symlink_to(f".digests/{image.name}")
    demo_hub.login("ada")
    demo_hub.login("alice")
    demo_hub.restart(CARME_SANDBOX_IMAGES=str(store))
    found = Site(demo_hub, store)
    wait_for(lambda: found.is_in_catalogue("torch"), 60, "the catalogue")
    found.rest("PUT", "images/torch/offers", {"to": "user", "name": "alice"})
    alice = demo_hub.login("alice")
    wait_for(lambda: "torch – Of the store" in str(alice.get("/hub/spawn").body), 20, "the offer in the form")
    yield found
    demo_hub.stop_all()
    demo_hub.restart()


def test_a_user_builds_an_image_in_a_job_and_uses_it_in_a_session_and_a_run(site: Site) -> None:
    site.wheels.put("climate/requirements.txt", "carme_tool==2.0\n")
    lab = Lab(site.hub, profile="cpu", image="torch", cpus=1)
    status, out = lab.command("carme-hub", "image", "build", str(site.home / "climate"), "--minutes=5", timeout=180)
    assert status == 0, out
    assert "Image climate on top of torch: job" in out
    assert "carme_tool 2.0" in out, "the log was followed"
    build = site.builds()["climate"]
    assert (build["state"], build["base_digest"]) == ("ready", DIGEST)
    answer = site.hub.api("GET", "/carme/users/alice/batch-jobs")
    [job] = [each for each in answer.body["batch_jobs"] if each["id"] == build["id"]]
    assert (job["run"], job["succeeded"], job["job"] > 0) == ("image-climate", True, True), "it was a job of hers"
    layer = site.home / ".carme/images" / build["id"]
    assert (layer.stat().st_uid, layer.stat().st_mode & 0o077) == (site.wheels.owner[0], 0), "it is hers alone"
    page = str(site.hub.login("alice").get(f"/hub/carme/images/builds/{build['id']}").body)
    assert "is ready" in page
    assert "carme_tool 2.0" in page, "its log is on the page"
    lab.stop()

    lab = Lab(site.hub, profile="cpu", image="climate", cpus=1)
    version, file, digest = json.loads(lab.check(LOOK).strip().splitlines()[-1])
    assert (version, digest) == ("2.0", DIGEST)
    assert file.startswith(str(layer))
    run = "%load_ext carme_hub.training\n%%distributed -n 1\nimport carme_tool; print('rank has', carme_tool.VERSION)"
    lab.check(run.partition("\n")[0])
    ran = lab.run(run.partition("\n")[2], 90)
    assert "rank has 2.0" in ran.out + ran.text(), ran
    lab.stop()


@pytest.mark.nightly
def test_what_is_installed_in_a_session_is_built_and_what_fails_leaves_nothing(site: Site) -> None:
    lab = Lab(site.hub, profile="cpu", image="torch", cpus=1)
    assert lab.command("pip", "install", "carme_tool")[0] == 0
    status, out = lab.command("carme-hub", "image", "build", "--installed", "--name=mine", "--minutes=5", timeout=180)
    assert status == 0, out
    assert site.builds()["mine"]["packages"] == "carme_tool==2.0\n"
    site.wheels.put("wrong.txt", "carme_nowhere\n")
    status, out = lab.command("carme-hub", "image", "build", "wrong.txt", "--name=wrong", "--minutes=5", timeout=180)
    assert status == 1, out
    assert "No matching distribution found for carme_nowhere" in out
    assert "pip did not install the packages" in out
    wrong = site.builds()["wrong"]
    assert wrong["state"] == "failed"
    assert not list((site.home / ".carme/images").glob(f"{wrong['id']}*"))
    status, out = lab.command("carme-hub", "image", "discard", "mine")
    assert status == 0, out
    assert "mine" not in site.builds()
    lab.stop()


@pytest.mark.nightly
def test_an_image_is_offered_to_everybody_hardened_and_used_by_somebody_else(site: Site) -> None:
    if "climate" not in site.builds():
        pytest.fail("the first story builds it")
    build = site.builds()["climate"]
    token = str(site.hub.api("POST", "/users/alice/tokens", {"note": "test"}).body["token"])
    site.rest("PUT", f"builds/{build['id']}/offer", {"to": "everybody"}, token)
    said = site.publish()
    assert "climate of alice waits for an administrator" in said
    assert not (site.store / "climate").exists(), "nobody has allowed it"
    wanted = site.wanted(build["id"])
    assert "python carme-tool 2.0" in wanted["found"]
    assert wanted["beyond"] == "torch, below it, is not offered to everybody."
    decision = {"allow": True, "digest": wanted["digest"], "with_base": True}
    # What alice puts into it after it was looked at is not what is allowed.
    file = site.wheels.put(f".carme/images/{build['id']}/lib/later.py", "LATER = True\n")
    site.rest("PUT", f"builds/{build['id']}/decision", decision)
    assert "is not what was allowed" in site.publish(status=1)
    file.unlink()
    site.publish()
    site.rest("PUT", f"builds/{build['id']}/decision", decision)
    assert f"{site.store}/climate" in site.publish()
    about = json.loads((site.store / "climate/image.json").read_text())
    assert about["who"] == "alice"
    assert {path.lstat().st_uid for path in (site.store / "climate/opt/carme").rglob("*")} == {0}
    wait_for(lambda: site.is_in_catalogue("climate"), 90, "the catalogue")
    bob = site.hub.login("bob")
    wait_for(lambda: 'value="climate"' in str(bob.get("/hub/spawn").body), 30, "bob's form")
    lab = Lab(site.hub, "bob", profile="cpu", image="climate", cpus=1)
    version, file, digest = json.loads(lab.check(LOOK).strip().splitlines()[-1])
    assert (version, digest) == ("2.0", about["digest"])
    assert file.startswith("/opt/carme/layer/")
    lab.stop()
    assert time.time() - build["created"] < 3600
