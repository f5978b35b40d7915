"""A user's own systems and environments on a real cluster: by a Containerfile and by an environment.yml, from a job's
buildah and py-rattler to a session, a run on several ranks, and somebody else's session.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rig.conda_channel import PLACEHOLDER, Channel
from rig.foreign_images import Entry, Registry, folder, layer, registry, write_layout
from rig.hub import Hub, wait_for
from rig.training import Lab
from test_images_story import DIGEST, describe
from test_user_builds import Site, open_folder

from carme_hub.sandbox.images.build import build_full_image

__all__ = ["open_folder"]

WHOLE = "sha256:" + "d" * 64
CONTAINERFILE = """# The lab's tools
FROM {address}/data:1 AS data
FROM whole@{digest}
ENV TORCH_HOME=/opt/models LEFT_OUT=1
COPY wheels /wheels
RUN chown 33:33 /wheels && \\
    /opt/venv/bin/python -m pip install --no-index --find-links /wheels carme_tool
COPY --from=data --chown=1000:1000 /data/answer /opt/models/answer
RUN id -u && cat /proc/self/uid_map
USER jovyan
CMD ["jupyter", "lab"]
"""
LOOK = (
    "import json, os, carme_tool\n"
    "print(json.dumps([carme_tool.__file__, open('/opt/models/answer').read(), os.environ['TORCH_HOME'], "
    "'LEFT_OUT' in os.environ, os.getuid()]))"
)
TOOL = f"#!{PLACEHOLDER}/bin/python\nimport carme_pure, sys\nprint('tool', carme_pure.VERSION, sys.prefix)\n"


@dataclass
class WholeSite:
    """A site whose store has an image with a system, beside a registry and a channel of conda that it allows."""

    site: Site
    registry: Registry

    @property
    def hub(self) -> Hub:
        """Its hub."""
        return self.site.hub

    def build(self, name: str, *words: str, limit: float = 400) -> str:
        """Build one of alice's folders in a session; return what the command said."""
        lab = Lab(self.hub, profile="cpu", image="torch", cpus=1)
        argv = ("carme-hub", "image", "build", *words, f"--name={name}", "--minutes=15")
        status, out = lab.command(*argv, timeout=limit)
        lab.stop()
        return f"{out}\nstatus {status}"

    def offer(self, name: str) -> None:
        """Have everybody offered an image of alice's, and wait until bob is."""
        id = self.site.builds()[name]["id"]
        token = str(self.hub.api("POST", "/users/alice/tokens", {"note": "test"}).body["token"])
        self.site.rest("PUT", f"builds/{id}/offer", {"to": "everybody"}, token)
        self.site.publish()  # the scan, of whose digest is decided
        decision = {"allow": True, "digest": self.site.wanted(id)["digest"], "with_base": True}
        self.site.rest("PUT", f"builds/{id}/decision", decision)
        assert f"{self.site.store}/{name}" in self.site.publish()
        wait_for(lambda: self.site.is_in_catalogue(name), 90, "the catalogue")
        bob = self.hub.login("bob")
        wait_for(lambda: f'value="{name}"' in str(bob.get("/hub/spawn").body), 30, "bob's form")


@pytest.fixture(scope="module")
def whole(demo_hub: Hub, open_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeSite]:
    store = open_folder / "store"
    (store / ".digests").mkdir(mode=0o755, parents=True)
    store.chmod(0o755)
    facts = json.loads((demo_hub.demo.folder / "facts.json").read_text())
    [listed] = [each for each in facts["images"] if each["name"] == "default"]
    for name, source, digest in (("torch", listed["path"], DIGEST), ("whole", str(build_full_image()), WHOLE)):
        image = store / ".digests" / digest.replace(":", "-")
        subprocess.run(["cp", "-a", source, str(image)], check=True)
        if name == "torch":
            describe(image)
        else:
            said = {"name": name, "description": "With a system", "format": "dir", "base": "own", "digest": digest}
            (image / "image.json").write_text(json.dumps(said))
        (store / name).symlink_to(f".digests/{image.name}")
    demo_hub.login("ada")
    demo_hub.login("alice")
    channel = Channel(Path(pwd.getpwnam("alice").pw_dir) / "channel")  # which containers see, as a site's is bound
    channel.add_python(site="/opt/venv/lib/python3.11/site-packages")
    channel.add("carme-lib", "1.5", {"bin/carme-tool": TOOL, "lib/x.bin": f"\0{PLACEHOLDER}/x\0"}, depends=("python",))
    pure = {"site-packages/carme_pure.py": "VERSION = '2.0'\n"}
    channel.add("carme-pure", "2.0", pure, depends=("carme-lib",), python=True)
    with registry(tmp_path_factory.mktemp("registry")) as loopback:
        layout = tmp_path_factory.mktemp("layout")
        write_layout(layout, layer([folder("data"), Entry("data/answer", b"42", mode=0o4755)]))
        target = f"docker://{loopback.address}/data:1"
        copy = ["skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", f"oci:{layout}", target]
        subprocess.run(copy, check=True, capture_output=True)
        more = {"CARME_SANDBOX_REGISTRIES": f"{loopback.address}/*", "CARME_SANDBOX_CHANNEL": channel.address}
        demo_hub.restart(CARME_SANDBOX_IMAGES=str(store), **more)
        site = Site(demo_hub, store)
        for name in ("torch", "whole"):
            wait_for(lambda name=name: site.is_in_catalogue(name), 60, "the catalogue")
            site.rest("PUT", f"images/{name}/offers", {"to": "user", "name": "alice"})
        alice = demo_hub.login("alice")
        wait_for(lambda: "whole – With a system" in str(alice.get("/hub/spawn").body), 20, "the offer in the form")
        yield WholeSite(site, loopback)
        demo_hub.stop_all()
        demo_hub.restart()


def test_a_containerfile_becomes_an_image_of_its_users_and_then_of_others(whole: WholeSite) -> None:
    site = whole.site
    site.wheels.put("lab/Containerfile", CONTAINERFILE.format(address=whole.registry.address, digest=WHOLE))
    site.wheels.add("carme_tool", "2.0")
    subprocess.run(["cp", "-a", str(site.home / "wheels"), str(site.home / "lab/wheels")], check=True)
    said = whole.build("own-lab", str(site.home / "lab"))
    assert said.endswith("status 0"), said
    assert f"{whole.registry.address}/data:1 is sha256:" in said, "what a tag stands for is said"
    assert "STEP" in said, "the log was followed"
    assert "USER is left out" in said
    uid = site.wheels.owner[0]
    assert re.search(rf"\n +0 +{uid} +1\n", said), "one uid, and no root"
    build = site.builds()["own-lab"]
    assert (build["state"], build["kind"], build["base"], build["base_digest"]) == (
        *("ready", "containerfile", "whole", WHOLE),
    )
    built = site.home / ".carme/images" / build["id"]
    assert (built.stat().st_uid, built.stat().st_mode & 0o077) == (uid, 0), "it is hers alone"
    assert {path.lstat().st_uid for path in (built / "rootfs").rglob("*")} == {uid}
    assert not list(Path("/var/tmp").glob("carme-build-*")), "nothing is left on the node"

    lab = Lab(site.hub, profile="cpu", image="own-lab", cpus=1)
    file, answer, home, left_out, as_uid = json.loads(lab.check(LOOK).strip().splitlines()[-1])
    assert (answer, home, left_out, as_uid) == ("42", "/opt/models", False, uid)
    assert file.startswith("/opt/venv/")
    lab.check("%load_ext carme_hub.training")
    ran = lab.run("%%distributed -n 2\nimport carme_tool; print('rank has', carme_tool.VERSION)", 120)
    assert (ran.out + ran.text()).count("rank has 2.0") >= 1, ran
    lab.stop()

    whole.offer("own-lab")
    about = json.loads((site.store / "own-lab/image.json").read_text())
    assert (about["who"], about["labels"]["carme.base"]) == ("alice", WHOLE)
    tree = site.store / "own-lab"
    assert {path.lstat().st_uid for path in tree.rglob("*")} == {0}
    assert not (tree / "opt/models/answer").stat().st_mode & 0o6022, "setuid of the registry's image is gone"
    lab = Lab(site.hub, "bob", profile="cpu", image="own-lab", cpus=1)
    file, answer, home, *_ = json.loads(lab.check(LOOK).strip().splitlines()[-1])
    assert (answer, home) == ("42", "/opt/models")
    lab.stop()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM docker.io/library/python:3.12\n", "FROM docker.io/library/python:3.12 is not allowed here"),
        ("FROM whole\nONBUILD RUN x\n", "Line 2: “ONBUILD RUN x” is not an instruction that is built here"),
        ("FROM torch\n", "has no system of its own"),
        ("FROM elsewhere\n", "you are offered no such image"),
        ("FROM whole\nRUN echo begun; exit 7\n", "buildah did not build it; its last lines say why"),
        ("FROM whole\nRUN rm /opt/venv/bin/jupyterhub-singleuser\n", "the image has no jupyterhub-singleuser"),
    ],
)
def test_what_is_not_built_says_why_and_leaves_nothing(whole: WholeSite, text: str, said: str) -> None:
    whole.site.wheels.put("wrong/Containerfile", text)
    out = whole.build("wrong", str(whole.site.home / "wrong"))
    assert out.endswith("status 1"), out
    assert said in out
    images = whole.site.home / ".carme/images"
    assert not images.exists() or not list(images.glob("*.part"))
    assert not list(Path("/var/tmp").glob("carme-build-*"))
    assert whole.site.builds().get("wrong", {"state": "failed"})["state"] == "failed"


def test_an_environment_of_conda_is_a_kernel_with_runs_also_for_others(whole: WholeSite) -> None:
    site = whole.site
    site.wheels.add("carme_tool", "2.0")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "py-rattler>=0.20,<1"]
    subprocess.run([*fetch, "--dest", str(site.home / "wheels")], check=True)
    for path in (site.home / "wheels").iterdir():
        os.chown(path, *site.wheels.owner)
    text = "name: gis\nchannels: [{}]\ndependencies: [python, pip, carme-pure>=1, {{pip: [carme_tool]}}]\n"
    site.wheels.put("gis/environment.yml", text.format("defaults"))
    said = whole.build("gis", str(site.home / "gis"))
    assert "The channel defaults is not allowed here. Allowed are ours." in said
    site.wheels.put("gis/environment.yml", text.format("ours"))
    said = whole.build("gis", str(site.home / "gis"))
    assert said.endswith("status 0"), said
    assert "carme-lib 1.5" in said
    build = site.builds()["gis"]
    assert (build["kind"], build["base_digest"]) == ("conda", DIGEST)
    code = (
        "import json, subprocess, sys, carme_pure, carme_tool\n"
        "said = subprocess.run(['carme-tool'], capture_output=True, text=True).stdout\n"
        "print(json.dumps([carme_pure.VERSION, carme_tool.VERSION, sys.prefix, said]))"
    )
    own = f"{site.home}/.carme/images/{build['id']}/conda"
    lab = Lab(site.hub, profile="cpu", image="gis", cpus=1, kernel="conda-gis")
    found = json.loads(lab.check(code).strip().splitlines()[-1])
    assert found == ["2.0", "2.0", own, f"tool 2.0 {own}\n"]
    ran = lab.run("%%distributed -n 2\nimport carme_pure; print('rank has', carme_pure.VERSION)", 120)
    assert "rank has 2.0" in ran.out + ran.text(), ran
    lab.stop()

    whole.offer("gis")
    lab = Lab(site.hub, "bob", profile="cpu", image="gis", cpus=1, kernel="conda-gis")
    found = json.loads(lab.check(code).strip().splitlines()[-1])
    moved = "/opt/carme/layer/conda"
    assert found == ["2.0", "2.0", moved, f"tool 2.0 {moved}\n"], "its files name their new place"
    ran = lab.run("%%distributed -n 2\nimport carme_pure; print('rank has', carme_pure.VERSION)", 120)
    assert "rank has 2.0" in ran.out + ran.text(), ran
    lab.stop()
