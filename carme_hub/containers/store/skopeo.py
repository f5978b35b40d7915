"""Copy images by skopeo: from a registry by digest, or from a layout or an archive; never without a signature policy.

skopeo checks the digest of every blob while it copies, and the policy (containers-policy.json(5): who must have signed
what) before. It runs as the unprivileged account and writes only to the work folder: what it has copied is checked
again as it is taken to the store's blobs, also where the copy ended early. So the next attempt begins where the last
one ended, and an image shares the layers of others.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

from carme_hub.errors import ContainerError

from .cosign import verified
from .folder import StoreFolder
from .manifest import MAX_BYTES, Blob, Manifest, digest_of, entry_digest, instance, parse_manifest, read_json
from .process import Steps, through_proxy
from .source import Source
from .trust import Trust

_TAG = "image"
_MIB = 1 << 20


class Skopeo:
    """skopeo for one image.

    Args:
        progress: takes a line.
    """

    def __init__(self, steps: Steps, store: StoreFolder, trust: Trust, progress: Callable[[str], None]) -> None:
        self._steps, self._store, self._trust, self._progress = steps, store, trust, progress

    def resolve(self, source: Source) -> tuple[str, Manifest]:
        """Return the digest that a registry's tag stands for now, and the manifest of its image for this machine.

        Raises:
            ContainerError: the registry does not answer, has no such image, or has another than that of the digest.
        """
        content = self._raw(source, "")
        digest = digest_of(content)
        if source.digest and digest != source.digest:
            raise ContainerError(f"{source}: the registry answered with another image, {digest}")
        if inner := instance(content):
            content = self._raw(source, inner)
            if digest_of(content) != inner:
                raise ContainerError(f"{source}: the registry answered with another image than that of {inner}")
        manifest = parse_manifest(content)
        self._steps.bounds.check_size(manifest.size, str(source))
        return digest, manifest

    def fetch(self, source: Source, digest: str, manifest: Manifest) -> Manifest:
        """Copy a registry's image to the blobs of the store; return its manifest as the store has it.

        Args:
            digest: for which the tag stands, of the manifest or of an index that has it.
        """
        self._trust, lines = verified(source, (manifest.digest, digest), self._trust, self._steps)
        for line in lines:
            self._progress(line)
        layout = self._layout(manifest.blobs)
        there = sum(blob.size for blob in manifest.blobs if (layout / _blob(blob.digest)).exists())
        if there:
            self._progress(f"{_mib(there)} of {_mib(manifest.size)} MiB are in the store already")
        return self._copy(source.reference(manifest.digest), layout, manifest, plain=source.is_loopback)

    def read(self, source: Source) -> Manifest:
        """Copy the image of a layout or an archive to the blobs of the store; return its manifest there."""
        taken = self._steps.work / "source"
        if source.kind == "oci":
            _copy_layout(Path(source.location), source.tag, taken, self._steps)
            return self._copy(f"oci:{taken}:{_TAG}", self._layout(()), None)
        _copy_file(Path(source.location), taken, self._steps)
        named = f":{source.tag}" if source.tag else ""
        return self._copy(f"{source.kind}:{taken}{named}", self._layout(()), None)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _raw(self, source: Source, digest: str) -> bytes:
        """Return a manifest as a registry has it."""
        words = ["inspect", "--raw", *(["--tls-verify=false"] if source.is_loopback else [])]
        return self._skopeo([*words, source.reference(digest)], "--authfile").encode("utf-8", "surrogateescape")

    def _skopeo(self, words: list[str], auth_option: str, tick: Callable[[], None] = lambda: None) -> str:
        with ExitStack() as stack:
            # Named always: without them skopeo takes those of the account's home, or none.
            policy, policy_fd = stack.enter_context(self._steps.readable(self._trust.policy))
            auth, auth_fd = stack.enter_context(self._steps.readable(self._trust.auth))
            argv = ["skopeo", "--policy", policy, "--tmpdir", str(self._steps.work)]
            argv += ["--registries.d", self._trust.signatures] if self._trust.signatures else []
            argv += [words[0], auth_option, auth]
            try:
                return self._steps.run(
                    [*argv, *words[1:]],
                    confine=False,
                    pass_fds=(policy_fd, auth_fd),
                    environ=through_proxy(),
                    tick=tick,
                )
            except ContainerError as error:
                if hint := self._trust.hint(str(error)):
                    raise ContainerError(f"{error}. {hint}") from error
                raise

    def _layout(self, blobs: Collection[Blob]) -> Path:
        """Return a layout for skopeo to write to, with those of the blobs that the store has."""
        layout = self._steps.work / "layout"
        (layout / "blobs/sha256").mkdir(parents=True)
        for blob in blobs:
            if self._store.blob_is_good(blob.digest):
                (layout / _blob(blob.digest)).hardlink_to(self._store.blob(blob.digest))
        self._steps.give(layout, layout / "blobs", layout / "blobs/sha256")
        return layout

    def _copy(self, reference: str, layout: Path, manifest: Manifest | None, *, plain: bool = False) -> Manifest:
        copied = layout / "blobs/sha256"
        told = [time.monotonic()]

        def tick() -> None:
            self._steps.bounds.check_size(size := _size(copied), "the image")
            if time.monotonic() - told[0] > 2.0:
                told[0] = time.monotonic()
                total = f" of {_mib(manifest.size)}" if manifest else ""
                self._progress(f"{_mib(size)}{total} MiB are copied")

        # Signatures are checked first, and a layout has no place for them.
        options = ["--remove-signatures", *(["--src-tls-verify=false"] if plain else [])]
        try:
            self._skopeo(["copy", *options, reference, f"oci:{layout}:{_TAG}"], "--src-authfile", tick)
        except ContainerError:
            self._store.take_blobs(copied)
            raise
        return self._take(layout, manifest)

    def _take(self, layout: Path, expected: Manifest | None) -> Manifest:
        """Take what was copied to the blobs of the store, and return the manifest there."""
        digest = _tagged(_read_foreign(layout / "index.json"), _TAG)
        manifest = parse_manifest(_read_foreign(layout / _blob(digest)))
        self._steps.bounds.check_size(manifest.size, "the image")
        if expected is not None and [each.digest for each in expected.layers] != [
            each.digest for each in manifest.layers
        ]:
            raise ContainerError("skopeo copied other layers than those of the manifest")
        for each in (digest, *(blob.digest for blob in manifest.blobs)):
            if expected is None:
                self._store.blob_is_good(each)  # a damaged one is replaced; those of a registry were looked at before
            if not self._store.take_blob(layout / _blob(each), each):
                raise ContainerError(f"the copy of {each} is damaged or missing; try again")
        return manifest


def write_layout(folder: Path, store: StoreFolder, manifest: Manifest) -> str:
    """Write a layout that has one image, with links to the store's blobs; return how umoci names the image."""
    (folder / "blobs/sha256").mkdir(parents=True)
    for digest in (manifest.digest, *(blob.digest for blob in manifest.blobs)):
        if not store.blob(digest).exists():
            raise ContainerError(f"the store has not got {digest} any more; add the image again from its source")
        (folder / _blob(digest)).hardlink_to(store.blob(digest))
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": manifest.digest,
        "size": store.blob(manifest.digest).stat().st_size,
        "annotations": {"org.opencontainers.image.ref.name": _TAG},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return f"{folder}:{_TAG}"


def _copy_layout(layout: Path, tag: str, to: Path, steps: Steps) -> None:
    """Copy one image of a layout to the work folder, where the account can read it."""
    digest = _tagged(_read_foreign(layout / "index.json"), tag)
    (to / "blobs/sha256").mkdir(parents=True)
    content = _read_foreign(layout / _blob(digest))
    if inner := instance(content):
        digest, content = inner, _read_foreign(layout / _blob(inner))
    manifest = parse_manifest(content)
    steps.bounds.check_size(manifest.size, str(layout))
    for each in (digest, *(blob.digest for blob in manifest.blobs)):
        _copy_file(layout / _blob(each), to / _blob(each), steps)
    entry = {
        "mediaType": read_json(content, "the manifest").get("mediaType", "application/vnd.oci.image.manifest.v1+json"),
        "digest": digest,
        "size": len(content),
        "annotations": {"org.opencontainers.image.ref.name": _TAG},
    }
    (to / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (to / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    for file in (to, to / "index.json", to / "oci-layout"):
        file.chmod(0o755 if file.is_dir() else 0o644)


def _copy_file(file: Path, to: Path, steps: Steps) -> None:
    """Copy a file that the account may have no access to, and give it the copy."""
    try:
        with file.open("rb") as read, to.open("wb") as write:
            if not stat.S_ISREG(os.fstat(read.fileno()).st_mode):
                raise ContainerError(f"{file} is not a file")
            steps.bounds.check_size(os.fstat(read.fileno()).st_size, str(file))
            while block := read.read(_MIB):
                steps.bounds.left()
                write.write(block)
    except OSError as error:
        raise ContainerError(f"{file} cannot be copied: {error.strerror}") from error
    steps.give(to)


def _tagged(index: bytes, tag: str) -> str:
    """Return the digest of the image that a layout's index has under a name, or of its only one."""
    value = read_json(index, "the layout's index.json")
    entries = [each for each in value.get("manifests", []) if isinstance(each, dict)]
    names = {
        str((each.get("annotations") or {}).get("org.opencontainers.image.ref.name", "")): each for each in entries
    }
    entry = names.get(tag) if tag else (entries[0] if len(entries) == 1 else None)
    if entry is None:
        raise ContainerError(f"name one of the layout's images: {', '.join(sorted(names)) or 'it has none'}")
    return entry_digest(entry)


def _read_foreign(file: Path) -> bytes:
    """Read a small file that a foreign program wrote, if it is one."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ContainerError(f"{file.name[:80]} of the image's layout cannot be read: {error.strerror}") from error


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _size(folder: Path) -> int:
    size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                size += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return size


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f}"
