"""The doctor on stores of images: who can write there, what their policy asks, what is not installed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from traitlets.config import Config

from carme_hub.cli.doctor import images
from carme_hub.cli.doctor.findings import Finding, Level
from carme_hub.containers.store import trust

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a store belongs to root")


@pytest.fixture
def store(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store, and a policy that asks for a signature."""
    policy = open_path / "policy.json"
    policy.write_text(json.dumps({"default": [{"type": "reject"}]}))
    monkeypatch.setattr(images, "POLICIES", (policy,))
    monkeypatch.setattr(trust, "POLICIES", (policy,))
    made = open_path / "store"
    made.mkdir(mode=0o755)
    return made


def findings(store: Path, **spawner: object) -> list[Finding]:
    config = Config()
    config.CarmeImages.stores = [str(store)]
    config.SlurmContainerSpawner.update(spawner)
    return list(images.check(config))


def test_a_store_that_only_root_can_write_is_well(store: Path) -> None:
    assert findings(store) == []
    assert list(images.check(Config())) == [], "a site without stores is asked for nothing"


@pytest.mark.parametrize("wrong", ["others write", "another's", "above", "closed"])
def test_a_store_that_others_can_write_or_nobody_read_is_unsafe(store: Path, wrong: str) -> None:
    if wrong == "another's":
        os.chown(store, 12345, 0)
    elif wrong == "above":
        (store / "images").mkdir()
        store.chmod(0o777)
        store /= "images"
    else:
        store.chmod(0o775 if wrong == "others write" else 0o700)
    [found] = findings(store)
    assert (found.level, found.setting) == (Level.UNSAFE, "CarmeImages.stores")
    assert ("users cannot read it" if wrong == "closed" else "not only root can write") in found.why


def test_a_store_that_is_not_there_is_not_known_to_be_safe(store: Path) -> None:
    [found] = findings(store / "missing")
    assert found.level is Level.UNKNOWN


def test_a_policy_that_asks_for_nothing_and_one_that_others_write_are_named(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = store.parent / "policy.json"
    policy.chmod(0o666)
    [found] = findings(store)
    assert (found.level, "nobody else may write it" in found.why) == (Level.UNSAFE, True)
    policy.chmod(0o644)
    policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
    [found] = findings(store)
    assert (found.level, "no signatures of images are checked" in found.why) == (Level.ADVICE, True)
    policy.write_text(json.dumps({"default": [{"type": "sigstoreSigned", "keyPath": "/etc/carme-hub/cosign.pub"}]}))
    monkeypatch.setattr(images, "PROGRAMS", {})
    monkeypatch.setenv("PATH", str(store))
    [found] = findings(store)
    assert (found.level, "asks for signatures of cosign" in found.why) == (Level.ADVICE, True)
    policy.unlink()
    [found] = findings(store)
    assert (found.level, found.setting) == (Level.ADVICE, str(policy))


def test_programs_that_are_not_installed_are_named_with_their_packages(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(store))
    [found] = findings(store)
    assert "skopeo, umoci, bwrap, unsquashfs not on this machine" in found.why
    assert "apt-get install skopeo umoci bubblewrap squashfs-tools" in found.mend


def test_images_of_one_file_need_fuse_that_users_may_open(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = store.parent / "fuse"
    monkeypatch.setattr(images, "FUSE", fuse)
    listed = [{"name": "packed", "path": "/srv/images/packed/image.sqsh", "format": "sqfs"}]
    [found] = findings(store, images=listed, container_runtime="charliecloud")
    assert f"users may not open {fuse} here" in found.why
    assert "no session with packed starts" in found.why
    assert findings(store, images=listed) == [], "bubblewrap takes folders"
    fuse.touch(0o666)
    fuse.chmod(0o666)
    assert findings(store, images=listed, container_runtime="charliecloud") == []


def test_copies_on_nodes_need_a_prolog_that_makes_them() -> None:
    config = Config()
    assert list(images.check_prolog(config, {"Prolog": "(null)"})) == []
    config.CarmeImages.node_store = "/var/lib/carme-images"
    for name in ("Prolog", "Prolog[0]"):
        assert list(images.check_prolog(config, {name: "/etc/slurm/prolog.d/*"})) == []
    [found] = images.check_prolog(config, {"Prolog": "(null)"})
    assert (found.level, found.setting) == (Level.UNSAFE, "CarmeImages.node_store")


def test_a_prolog_that_is_seen_to_fetch_no_image_is_named(tmp_path: Path) -> None:
    config = Config()
    config.CarmeImages.node_store = "/var/lib/carme-images"
    (tmp_path / "carme-stage-prolog").write_text("#!/bin/sh\nexec carme-stage-out prolog\n")
    pattern = {"Prolog": f"{tmp_path}/carme-*-prolog"}
    [found] = images.check_prolog(config, pattern)
    assert (found.level, "does not call carme-image-prolog" in found.why) == (Level.UNSAFE, True)
    (tmp_path / "carme-image-prolog").write_text("#!/bin/sh\n")
    assert list(images.check_prolog(config, pattern)) == []
    (tmp_path / "own").write_text("#!/bin/sh\n/opt/carme-hub/node/carme-image-prolog\n")
    assert list(images.check_prolog(config, {"Prolog[0]": "/etc/a", "Prolog[1]": f"{tmp_path}/own"})) == []
