"""Images with layers: an image is its digest, a name moves only by update, layers and files are there once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rig.foreign_images import SYSTEM, Entry, Registry, layer, registry, write_layout

from carme_hub.containers.images import pinned, read_image
from carme_hub.containers.runtime import Image
from carme_hub.containers.store.add import AddOptions, add_image, rebuild_image, update_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.containers.store.recipe import about, explain, read_recipe
from carme_hub.containers.store.trust import Trust, read_trust
from carme_hub.errors import ContainerError

BASE = layer((*SYSTEM, Entry("usr/lib/base.txt", b"base" * 5000, mode=0o644)))
DIST = "opt/venv/lib/python3.11/site-packages/torch-2.6.0.dist-info/METADATA"
TORCH = layer((Entry(DIST, b"Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\nLicense: BSD-3-Clause\n\ntext"),))


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def push(loopback: Registry, folder: Path, name: str, *layers: bytes, **more: object) -> str:
    shutil.rmtree(folder / "pushed", ignore_errors=True)
    digest = write_layout(folder / "pushed", *layers, **more)  # type: ignore[arg-type]
    loopback.push(folder / "pushed", name)
    return digest


def test_a_tag_is_resolved_once_and_moves_only_by_update(loopback: Registry, store: Path, tmp_path: Path) -> None:
    first = push(loopback, tmp_path, "site/moves:1", BASE)
    image = add_image(f"docker://{loopback.address}/site/moves:1", store, "lab", "For labs")
    second = push(loopback, tmp_path, "site/moves:1", BASE, TORCH)
    assert about(image)["digest"] == first
    assert StoreFolder(store).named("lab").tag == "1"
    began = pinned(Image("lab", str(image)))
    assert began.digest == first
    now = update_image(store, "lab")
    assert (now.digest, now.before[0]["digest"]) == (second, first)
    assert about(image)["digest"] == second
    # What runs keeps the image that it has.
    assert read_image(Path(began.path)).digest == first
    assert pinned(Image("lab", str(image)), first).path == began.path
    assert update_image(store, "lab").since == now.since


def test_an_image_says_what_it_is(loopback: Registry, store: Path, tmp_path: Path) -> None:
    labels = {"org.opencontainers.image.licenses": "MIT", "evil": "\x1b[2J"}
    digest = push(loopback, tmp_path, "site/says:2", BASE, TORCH, env=["CUDA_VERSION=12.4"], labels=labels)
    image = add_image(f"docker://{loopback.address}/site/says:2", store, "lab", "For labs")
    said = about(image)
    assert said["digest"] == digest
    assert (said["source"], said["tag"]) == (f"docker://{loopback.address}/site/says:2", "2")
    assert said["packages"] == {"python": {"torch": "2.6.0"}}
    assert said["licences"] == {"BSD-3-Clause": 1}
    assert said["labels"] == {"evil": " [2J", "org.opencontainers.image.licenses": "MIT"}
    assert (len(said["layers"]), said["environ"]) == (2, {"CUDA_VERSION": "12.4"})
    assert read_image(image).environ == (("CUDA_VERSION", "12.4"),)
    assert said["files"] > 10
    assert said["who"]
    recipe = yaml.safe_load((image / "image.yaml").read_text())
    assert recipe["digest"] == digest
    assert {"skopeo", "umoci", "carme-hub"} == set(recipe["added"]["with"])
    text = explain(read_recipe(image))
    assert f"carme-hub image add NAME docker://{loopback.address}/site/says@{digest}" in text
    assert "torch 2.6.0" in text


def test_layers_and_files_are_there_once(loopback: Registry, store: Path, tmp_path: Path) -> None:
    push(loopback, tmp_path, "site/once:1", BASE)
    one = add_image(f"docker://{loopback.address}/site/once:1", store, "one")
    push(loopback, tmp_path, "site/once:2", BASE, TORCH)
    two = add_image(f"docker://{loopback.address}/site/once:2", store, "two")
    assert (one / "usr/lib/base.txt").stat().st_ino == (two / "usr/lib/base.txt").stat().st_ino
    assert len(list((store / ".blobs/sha256").iterdir())) == 2 + 2 + 2  # layers, configurations, manifests
    assert list(check_image_files(StoreFolder(store), two.resolve())) == []
    # One digest under two names is one image.
    three = add_image(f"docker://{loopback.address}/site/once:2", store, "three")
    assert three.resolve() == two.resolve()
    assert read_image(three).name == "three"


def test_what_was_copied_is_not_copied_again(loopback: Registry, store: Path, tmp_path: Path) -> None:
    large = layer((Entry("usr/large", os.urandom(8 << 20)),))  # the base is there long before
    push(loopback, tmp_path, "site/resumes:1", BASE, large)
    layers = json.loads(index(tmp_path))["layers"]
    lost = loopback.blob(layers[1]["digest"])
    content = lost.read_bytes()
    lost.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ContainerError, match="skopeo"):
        add_image(f"docker://{loopback.address}/site/resumes:1", store, "lab")
    assert [blob.name for blob in (store / ".blobs/sha256").iterdir()] == [layers[0]["digest"].removeprefix("sha256:")]
    assert not (store / "lab").exists()
    lost.write_bytes(content)
    lines: list[str] = []
    add_image(f"docker://{loopback.address}/site/resumes:1", store, "lab", progress=lines.append)
    assert any("in the store already" in line for line in lines)


def index(folder: Path) -> str:
    """Return the manifest of the layout that was pushed last."""
    layout = folder / "pushed"
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    return (layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_text()


def test_a_digest_that_the_registry_does_not_have_is_refused(loopback: Registry, store: Path, tmp_path: Path) -> None:
    digest = push(loopback, tmp_path, "site/pins:1", BASE)
    with pytest.raises(ContainerError, match="skopeo"):
        add_image(f"docker://{loopback.address}/site/pins@sha256:{'0' * 64}", store, "lab")
    image = add_image(f"docker://{loopback.address}/site/pins@{digest}", store, "lab")
    assert about(image)["digest"] == digest
    with pytest.raises(ContainerError, match="by digest, so it never changes"):
        update_image(store, "lab")


def test_an_image_is_added_again_from_its_recipe(loopback: Registry, store: Path, tmp_path: Path) -> None:
    digest = push(loopback, tmp_path, "site/again:1", BASE)
    image = add_image(f"docker://{loopback.address}/site/again:1", store, "lab", "For labs")
    recipe = tmp_path / "image.yaml"
    shutil.copy(image / "image.yaml", recipe)
    push(loopback, tmp_path, "site/again:1", BASE, TORCH)  # the tag has moved since
    other = store.parent / "other"
    other.mkdir()
    again = rebuild_image(read_recipe(recipe), other, "lab")
    assert about(again)["digest"] == digest
    assert about(again)["listing"] == about(image)["listing"]


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_layouts_and_archives_are_images_with_layers(store: Path, tmp_path: Path, kind: str) -> None:
    digest = write_layout(tmp_path / "layout", BASE, TORCH)
    source = f"oci:{tmp_path}/layout:image"
    if kind != "oci":
        file = tmp_path / "image.tar"
        argv = ["skopeo", "--insecure-policy", "copy", "-q", source, f"{kind}:{file}:site/lab:1"]
        subprocess.run(argv, check=True, capture_output=True)
        file.chmod(0o600)
        source = f"{kind}:{file}"
    image = add_image(source, store, "lab")
    assert (image / "usr/lib/base.txt").read_bytes() == b"base" * 5000
    assert len(about(image)["layers"]) == 2
    if kind != "docker-archive":  # in which layers are not packed: packed again, they are others
        assert about(image)["digest"] == digest
    folder = StoreFolder(store)
    folder.blob(about(image)["layers"][1]).write_bytes(b"damaged")
    assert "is damaged" in str(list(check_image_files(folder, image.resolve())))
    add_image(source, store, "again")
    assert list(check_image_files(folder, image.resolve())) == [], "the next one with the layer has replaced it"


def test_whiteouts_take_away_what_lower_layers_have(store: Path, tmp_path: Path) -> None:
    low = layer((*SYSTEM, Entry("usr/a/one", b"1"), Entry("usr/a/two", b"2"), Entry("usr/b/three", b"3")))
    write_layout(tmp_path / "layout", low, layer((Entry("usr/a/.wh.one"), Entry("usr/b/.wh..wh..opq"))))
    image = add_image(f"oci:{tmp_path}/layout", store, "lab")
    assert sorted(path.name for path in (image / "usr/a").iterdir()) == ["two"]
    assert list((image / "usr/b").iterdir()) == []


def test_a_policy_refuses_what_nobody_has_signed(loopback: Registry, store: Path, tmp_path: Path) -> None:
    push(loopback, tmp_path, "site/unsigned:1", BASE)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"default": [{"type": "reject"}]}))
    options = AddOptions(trust=read_trust(policy))
    with pytest.raises(ContainerError, match="rejected by policy"):
        add_image(f"docker://{loopback.address}/site/unsigned:1", store, "lab", options=options)
    assert list((store / ".digests").glob("*")) == []
    policy.chmod(0o666)
    with pytest.raises(ContainerError, match="nobody else may write it"):
        read_trust(policy)


def test_passwords_come_from_a_private_file_and_are_in_no_argument(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_layout(tmp_path / "layout", BASE)
    with registry(tmp_path, "canary-password") as closed:
        closed.push(tmp_path / "layout", "site/closed:1")
        source = f"docker://{closed.address}/site/closed:1"
        with pytest.raises(ContainerError, match=r"unauthorized|authentication required"):
            add_image(source, store, "lab")
        started: list[list[str]] = []
        popen = subprocess.Popen

        def noting(argv: list[str], *rest: object, **more: object) -> object:
            started.append(argv)
            return popen(argv, *rest, **more)  # type: ignore[call-overload]

        monkeypatch.setattr(subprocess, "Popen", noting)
        trust = read_trust(authfile=Path(closed.authfile))
        add_image(source, store, "lab", options=AddOptions(trust=trust))
        monkeypatch.undo()
        assert any("skopeo" in argv for argv in started)
        auth = json.loads(Path(closed.authfile).read_text())["auths"][closed.address]["auth"]
        for secret in ("canary-password", auth):
            assert not any(secret in word for argv in started for word in argv)
            everything = [file for file in store.rglob("*") if file.is_file()]
            assert not any(secret.encode() in file.read_bytes() for file in everything)
        Path(closed.authfile).chmod(0o644)
        with pytest.raises(ContainerError, match="0600"):
            read_trust(authfile=Path(closed.authfile))


def test_a_squashfs_file_is_made_for_runtimes_that_mount_it(store: Path, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", BASE)
    path = add_image(f"oci:{tmp_path}/layout", store, "lab", options=AddOptions(form="sqfs"))
    image = read_image(path)
    assert (image.format, image.path) == ("sqfs", str(path / "image.sqsh"))
    assert list(check_image_files(StoreFolder(store), path.resolve())) == []
    out = subprocess.run(["unsquashfs", "-lln", image.path], capture_output=True, text=True, check=True).stdout
    assert "base.txt" in out
    assert {line.split()[1] for line in out.splitlines() if line.startswith(("d", "-", "l"))} == {"0/0"}
    assert pinned(image).path == str(path.resolve() / "image.sqsh")


def test_what_was_changed_since_is_named(store: Path, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", BASE)
    image = add_image(f"oci:{tmp_path}/layout", store, "lab").resolve()
    (image / "usr/lib/base.txt").write_bytes(b"BASE" * 5000)
    (image / "usr/bin/true").chmod(0o644)
    (image / "usr/new\n\x1b").touch()
    (image / "bin").unlink()
    (image / "bin").symlink_to("usr/sbin")
    lines = list(check_image_files(StoreFolder(store), image))
    assert sorted(lines) == [
        "'bin' has another target",
        "'usr/bin/true' has another mode",
        "'usr/lib/base.txt' has another content",
        "'usr/new\\n\\x1b' is not of the image",
    ]


def test_images_larger_than_allowed_are_refused_before_they_are_copied(
    loopback: Registry, store: Path, tmp_path: Path
) -> None:
    push(loopback, tmp_path, "site/large:1", layer((*SYSTEM, Entry("usr/x", os.urandom(300_000)))))
    options = AddOptions(bounds=Bounds(size_bytes=200_000))
    with pytest.raises(ContainerError, match="--max-gib"):
        add_image(f"docker://{loopback.address}/site/large:1", store, "lab", options=options)
    assert not (store / ".blobs").exists()
    assert Trust().file == ""
