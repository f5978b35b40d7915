"""Images on top of a user's own image, of an image with layers and of a squashfs file, and in other runtimes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab
from rig.user_wheels import UserWheels

from carme_hub.containers.images import as_setting, read_image
from carme_hub.containers.store import add_image
from carme_hub.containers.store.add import AddOptions
from carme_hub.sandbox.images.apptainer import ensure_apptainer
from carme_hub.sandbox.images.build import build_full_image

LOOK = (
    "import json, os, carme_lower\n"
    "try:\n    import carme_upper\nexcept ImportError:\n    carme_upper = None\n"
    "print(json.dumps([carme_lower.VERSION, carme_upper and carme_upper.VERSION, os.environ['CARME_LAYER']]))"
)
FUSE = Path("/dev/fuse")


class Site:
    """A hub with a store, and alice's wheels."""

    def __init__(self, hub: Hub, store: Path) -> None:
        self.hub, self.store, self.wheels = hub, store, UserWheels()
        for name, version in (("carme_lower", "1.0"), ("carme_upper", "1.0"), ("carme_upper", "2.0")):
            self.wheels.add(name, version)

    def build(self, lab: Lab, name: str, text: str) -> tuple[int, str]:
        """Build an image in a session, as its user does."""
        self.wheels.put(f"{name}.txt", text)
        return lab.command("carme-hub", "image", "build", f"{name}.txt", f"--name={name}", "--minutes=5", timeout=240)

    def built(self, name: str, user: str = "alice") -> Any:
        """Return one of a user's images."""
        found = self.hub.api("GET", f"/carme/users/{user}/image-builds").body["image_builds"]
        return next(each for each in found if each["name"] == name)

    def discard(self, name: str, user: str = "alice") -> None:
        """Remove one of a user's images, as soon as no session has it."""
        path = f"/carme/users/{user}/image-builds/{self.built(name, user)['id']}"
        wait_for(lambda: self.hub.api("DELETE", path).status == 200, 60, f"{name} to be removed")

    def seen(self, image: str, user: str = "alice") -> Any:
        """Return what a session with an image imports, and the layers that it has."""
        lab = Lab(self.hub, user, profile="cpu", image=image, cpus=1)
        found = json.loads(lab.check(LOOK).strip().splitlines()[-1])
        lab.stop()
        return found

    def discard_all(self) -> None:
        """Remove alice's images."""
        for each in self.hub.api("GET", "/carme/users/alice/image-builds").body["image_builds"]:
            self.hub.api("DELETE", f"/carme/users/alice/image-builds/{each['id']}")

    def rest(self, user: str, method: str, path: str, body: Any = None) -> Any:
        """Ask the images service as a user."""
        token = str(self.hub.api("POST", f"/users/{user}/tokens", {"note": "test"}).body["token"])
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        text = json.dumps(body) if body is not None else None
        answer = self.hub.request(method, f"/services/images/api/v1/{path}", text, headers)
        assert answer.status == 200, answer
        return answer.body

    def publish(self, **environ: str) -> None:
        """Publish what is due, as root does."""
        argv = [str(self.hub.demo.environment / "bin/carme-hub"), "image", "publish", f"--store={self.store}"]
        argv += [f"--config={self.hub.demo.config_file}"]
        environ |= {"CARME_SANDBOX_HUB": str(self.hub.demo.folder / "facts.json"), "PATH": "/usr/bin:/bin:/usr/sbin"}
        environ["CARME_SANDBOX_IMAGES"] = str(self.store)
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stderr

    def offer_and_publish(self, name: str, **environ: str) -> Any:
        """Have an image of alice's offered to everybody and published; return its description in the store."""
        id = self.built(name)["id"]
        self.rest("alice", "PUT", f"builds/{id}/offer", {"to": "everybody"})
        self.publish(**environ)
        [wanted] = [each["wanted"] for each in self.rest("ada", "GET", "builds")["builds"] if each["id"] == id]
        decision = {"allow": True, "digest": wanted["digest"], "with_base": True}
        self.rest("ada", "PUT", f"builds/{id}/decision", decision)
        self.publish(**environ)
        return json.loads((self.store / name / "image.json").read_text())

    def wait_for_offer(self, user: str, image: str) -> None:
        """Wait until the form of a user has an image."""
        window = self.hub.login(user)
        wait_for(lambda: f'value="{image}"' in str(window.get("/hub/spawn").body), 120, f"{image} in the form")


@pytest.fixture
def store() -> Iterator[Path]:
    """A store that every account can reach."""
    with TemporaryDirectory(prefix="carme-test-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "store").mkdir(mode=0o755)
        yield Path(folder) / "store"


@pytest.fixture
def apptainer() -> Iterator[None]:
    """Apptainer where nodes look for programs, and FUSE for every account, as a node of a site has them."""
    place, mode = Path("/usr/local/bin/apptainer"), FUSE.stat().st_mode & 0o777
    program = ensure_apptainer()
    made = not place.exists() and not Path("/usr/bin/apptainer").exists()
    if made:
        place.symlink_to(program)
    FUSE.chmod(0o666)
    yield
    FUSE.chmod(mode)
    if made:
        place.unlink()


def site_with(hub: Hub, store: Path, **traits: object) -> Site:
    """Restart the hub with a store, and other settings of its spawner."""
    for user in ("ada", "alice", "bob"):
        hub.login(user)
    hub.restart(CARME_SANDBOX_IMAGES=str(store), **({"CARME_SANDBOX_RUNTIME": json.dumps(traits)} if traits else {}))
    found = Site(hub, store)
    found.discard_all()
    return found


@pytest.fixture
def after(demo_hub: Hub) -> Iterator[Hub]:
    """The hub, which is as it was afterwards."""
    yield demo_hub
    demo_hub.stop_all()
    demo_hub.restart()


def test_on_top_of_ones_own_image_and_of_one_that_was_published(after: Hub, store: Path) -> None:
    facts = json.loads((after.demo.folder / "facts.json").read_text())
    [default] = [each for each in facts["images"] if each["name"] == "default"]
    image = store / ".digests" / ("sha256-" + "d" * 64)
    image.parent.mkdir(mode=0o755)
    subprocess.run(["cp", "-a", default["path"], str(image)], check=True)
    about = json.loads((image / "image.json").read_text())
    (image / "image.json").write_text(json.dumps({**about, "name": "based", "digest": "sha256:" + "d" * 64}))
    (store / "based").symlink_to(f".digests/{image.name}")
    site = site_with(
        after, store, images=[{**default, "name": "based", "path": str(image), "digest": "sha256:" + "d" * 64}]
    )

    lab = Lab(after, profile="cpu", image="based", cpus=1)
    status, out = site.build(lab, "lower", "carme_lower\ncarme_upper==1.0\n")
    assert status == 0, out
    lab.stop()
    lab = Lab(after, profile="cpu", image="lower", cpus=1)
    status, out = site.build(lab, "upper", "carme_upper==2.0\n")
    assert status == 0, out
    assert "it begins with the packages of your image lower" in out
    lab.stop()
    files = site.wheels.home / ".carme/images" / site.built("lower")["id"]
    assert files.is_dir()
    site.discard("lower")
    lab = Lab(after, profile="cpu", image="upper", cpus=1)
    assert lab.command("carme-hub", "image", "mine")[0] == 0
    assert not files.exists()
    found = json.loads(lab.check(LOOK).strip().splitlines()[-1])
    assert found[:2] == ["1.0", "2.0"], "it is whole without the one below"
    lab.stop()

    assert site.offer_and_publish("upper")["layer"] == "/opt/carme/layer"
    site.wait_for_offer("bob", "upper")
    bob = Lab(after, "bob", profile="cpu", image="upper", cpus=1)
    UserWheels("bob").add("carme_upper", "3.0")
    UserWheels("bob").put("third.txt", "carme_upper==3.0\n")
    status, out = bob.command("carme-hub", "image", "build", "third.txt", "--name=third", "--minutes=5", timeout=240)
    assert status == 0, out
    bob.stop()
    lower, upper, layers = site.seen("third", "bob")
    assert (lower, upper) == ("1.0", "3.0")
    assert layers.split(":")[1:] == ["/opt/carme/layer"], "on top of the one that is in the image"
    site.discard("third", "bob")


def runtime_traits(kind: str) -> dict[str, object]:
    """Return the settings of a site with a runtime."""
    # crun refuses a hybrid of cgroup v1 and v2, and virtual GPUs have no CDI file.
    podman = {"podman_engine": "runc", "podman_device": ""} if kind == "podman" else {}
    return {
        "container_runtime": kind,
        **podman,
        "images": [{**as_setting(read_image(build_full_image())), "name": "full"}],
    }


@pytest.mark.parametrize("kind", ["apptainer", "podman", "charliecloud"])
def test_an_image_of_a_users_own_starts_in_another_runtime(after: Hub, store: Path, apptainer: None, kind: str) -> None:
    assert apptainer is None
    site = site_with(after, store, **runtime_traits(kind))
    lab = Lab(after, profile="cpu", image="full", cpus=1)
    status, out = site.build(lab, "lower", "carme_lower\n")
    assert status == 0, out
    lab.stop()
    lower, upper, layers = site.seen("lower")
    assert (lower, upper) == ("1.0", None)
    assert layers.startswith(f"{site.wheels.home}/.carme/images/")


def test_on_top_of_a_squashfs_file_it_is_built_published_and_used(after: Hub, store: Path, apptainer: None) -> None:
    assert apptainer is None
    add_image(build_full_image(), store, "file", options=AddOptions(form="sqfs"))
    about = json.loads((store / "file/image.json").read_text())
    entry = {"name": "file", "path": f"{store}/file/{about['file']}", "format": "sqfs", "digest": about["digest"]}
    site = site_with(after, store, container_runtime="apptainer", images=[entry])
    lab = Lab(after, profile="cpu", image="file", cpus=1)
    status, out = site.build(lab, "lower", "carme_lower\n")
    assert status == 0, out
    lab.stop()
    assert site.built("lower")["base_digest"] == about["digest"]
    assert site.seen("lower")[0] == "1.0"
    traits = {"container_runtime": "apptainer", "images": [entry]}
    published = site.offer_and_publish("lower", CARME_SANDBOX_RUNTIME=json.dumps(traits))
    assert (published["format"], published["layer"]) == ("sqfs", "/opt/carme/layer")
    site.wait_for_offer("bob", "lower")
    assert site.seen("lower", "bob") == ["1.0", None, "/opt/carme/layer"]
    assert os.access(FUSE, os.R_OK)
