"""``carme-hub image remove``, ``pin``, ``unpin`` and ``collect``: what stays in a store, and what goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from traitlets import Bool, Float, Unicode

from carme_hub.cli.base import YES_FLAG, UsageError, positional_arguments, table
from carme_hub.containers.store.collect import KEEP_DAYS, Collected, collect, pin, unpin
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.check import open_read_only
from carme_hub.store.engine import CarmeStore
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.sessions import SessionStore

from .store_command import StoreCommand


class RemoveApp(StoreCommand):
    """Remove a name."""

    name = "carme-hub image remove"
    description = """Remove a name from the store: carme-hub image remove NAME. Its image stays until `carme-hub image
    collect` finds that nothing names it; remove it from SlurmContainerSpawner.images first."""

    def make(self) -> int:
        """Remove the name that the argument names."""
        (name,) = positional_arguments(self, "NAME")
        store = self.folder
        store.check()
        with store.locked(wait=60.0):
            store.forget(name)
        print(f"{name} is not a name any more")
        return 0


class PinApp(StoreCommand):
    """Pin an image."""

    name = "carme-hub image pin"
    description = "Keep an image, whatever happens to its names: carme-hub image pin NAME|DIGEST --reason=TEXT"

    reason = Unicode("", help="Why it is kept; shown by list and collect. Needed.").tag(config=True)
    aliases: Any = {**StoreCommand.aliases, "reason": "PinApp.reason"}

    def make(self) -> int:
        """Pin it."""
        (text,) = positional_arguments(self, "NAME|DIGEST")
        if not self.reason.strip():
            raise UsageError("say why it is kept: --reason=TEXT")
        store = self.folder
        store.check()
        image = store.find(text)
        with store.locked(wait=60.0):
            pin(store, image, self.reason)
        print(f"{image.name.replace('-', ':', 1)} is pinned")
        return 0


class UnpinApp(StoreCommand):
    """Unpin an image."""

    name = "carme-hub image unpin"
    description = "Do not keep an image any more that was pinned: carme-hub image unpin NAME|DIGEST"

    def make(self) -> int:
        """Unpin it."""
        (text,) = positional_arguments(self, "NAME|DIGEST")
        store = self.folder
        store.check()
        image = store.find(text)
        with store.locked(wait=60.0):
            unpin(store, image)
        print(f"{image.name.replace('-', ':', 1)} is not pinned any more")
        return 0


class CollectApp(StoreCommand):
    """Remove what nothing names."""

    name = "carme-hub image collect"
    description = """Remove images that no name, no pin, no session and no setting names any more, and layers that no
    image has. It lists them first and asks. Sessions are those of the hub whose configuration --config names; where its
    database does not answer, nothing is removed. Images stay some days after their last name went, for sessions that
    began before the hub recorded digests, or of another hub."""
    examples = "sudo carme-hub image collect --dry-run -f /etc/jupyterhub/jupyterhub_config.py"

    dry_run = Bool(False, help="Only list what would be removed.").tag(config=True)
    without_hub = Bool(False, help="No hub uses this store: look at no sessions.").tag(config=True)
    keep_days = Float(KEEP_DAYS, min=0, help="Days that an image stays after its last name went.").tag(config=True)

    aliases: Any = {**StoreCommand.aliases, "keep-days": "CollectApp.keep_days"}
    flags: Any = {
        **StoreCommand.flags,
        **YES_FLAG,
        "dry-run": ({"CollectApp": {"dry_run": True}}, "Only list what would be removed."),
        "without-hub": ({"CollectApp": {"without_hub": True}}, "No hub uses this store: look at no sessions."),
    }

    def make(self) -> int:
        """List, ask, and remove."""
        store = self.folder
        store.check()
        found = collect(store, *self._in_use(), keep_days=self.keep_days, dry_run=True)
        self._print(found)
        if self.dry_run or not (found.gone or found.blobs or found.leftovers):
            return 0
        self.confirm(f"Remove {len(found.gone)} images and {len(found.blobs)} layers?")
        done = collect(store, *self._in_use(), keep_days=self.keep_days, dry_run=False)  # a session may have begun
        self.note(f"removed {len(done.gone)} images and {len(done.blobs)} layers")
        return 0

    def _in_use(self) -> tuple[dict[str, str], frozenset[str]]:
        """Return the digests that sessions and settings name, and names of sessions whose digest is not known.

        Raises:
            CarmeError: the configuration or the database cannot be read.
        """
        if self.without_hub:
            return {}, frozenset()
        config = self.configuration()
        digests: dict[str, str] = {}
        names = set()
        for entry in config.SlurmContainerSpawner.get("images", []):
            path = Path(str(entry.get("path", "")))
            stem = next((each for each in path.parts if each.startswith("sha256-")), "")
            if digest := entry.get("digest") or stem.partition(".")[0].replace("-", ":"):
                digests[digest] = f"the settings name it: image {entry.get('name')}"
        engine = open_read_only(CarmeStore(config=config).url)
        try:
            for session in SessionStore(engine).open_sessions(CarmeSlurm(config=config).cluster):
                request = session.request
                if request.image_digest:
                    digests.setdefault(request.image_digest, f"session {session.id} of {session.user} has it")
                else:
                    names.add(request.image)
            for build in BuildStore(engine, CarmeSlurm(config=config).cluster).builds(time.time()):
                if build.base_digest:
                    digests.setdefault(build.base_digest, f"image {build.name} of {build.user} is on top of it")
        finally:
            engine.dispose()
        return digests, frozenset(names)

    def _print(self, found: Collected) -> None:
        if self.as_json:
            images = [{"digest": each.digest, "bytes": each.size, "kept": each.kept} for each in found.images]
            self.print_json({"images": images, "blobs": len(found.blobs), "blob_bytes": found.blob_size})
            return
        rows = [(each.digest[:19], each.size >> 20, each.kept or "goes") for each in found.images]
        print(table(("digest", "own MiB", "why"), rows, "own_MiB"))
        print(f"layers that no image has: {len(found.blobs)}, {found.blob_size >> 20} MiB")
