"""``carme-hub image list``, ``show``, ``explain`` and ``check``: they change nothing."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carme_hub.cli.base import UsageError, positional_arguments, table
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.collect import pin_reason
from carme_hub.containers.store.recipe import about, explain, read_recipe
from carme_hub.errors import ContainerError

from .store_command import StoreCommand

_SHORT = len("sha256:") + 12


class ListApp(StoreCommand):
    """List the images of a store."""

    name = "carme-hub image list"
    description = """List the names of the store with the tag and the digest that each stands for, and since when; then
    images that no name stands for."""

    def make(self) -> int:
        """Print a line for each name."""
        store, rows, named = self.folder, [], set()
        for name in store.names():
            what, said = store.named(name), about(store.path / name)
            named.add(what.image if what else "")
            since = time.strftime("%Y-%m-%d", time.localtime(what.since)) if what else ""
            rows.append((name, what.tag if what else "", said.get("digest", ""), since, said))
        for image in store.images():
            if image.name not in named:
                said = about(image)
                rows.append(("", "", said.get("digest", ""), pin_reason(store, image), said))
        if self.as_json:
            keys = ("name", "tag", "digest", "since")
            self.print_json(
                [{**dict(zip(keys, row, strict=False)), "source": row[4].get("source", "")} for row in rows]
            )
            return 0
        lines = [
            (name or "(no name)", tag or "-", digest[:_SHORT] or "(none)", since, said.get("format", ""), _mib(said))
            for name, tag, digest, since, said in rows
        ]
        print(table(("name", "tag", "digest", "since", "format", "MiB"), lines, "MiB"))
        return 0


class ShowApp(StoreCommand):
    """Show an image."""

    name = "carme-hub image show"
    description = "Show all that is known of an image: carme-hub image show NAME|DIGEST. --json for programs."

    def make(self) -> int:
        """Print it."""
        (text,) = positional_arguments(self, "NAME|DIGEST")
        store = self.folder
        image = store.find(text)
        said: dict[str, Any] = {**about(image), "folder": str(image), "pinned": pin_reason(store, image)}
        names = [what for each in store.names() if (what := store.named(each)) is not None and what.image == image.name]
        said["names"] = [asdict(each) for each in names]
        if self.as_json:
            self.print_json(said)
            return 0
        packages = said.pop("packages", None) or {}
        for key, value in said.items():
            if key != "names" and value not in ("", None, [], {}):
                print(f"{key}: {value if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)}")
        for each in names:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.since))
            print(f"{each.name}: {each.tag or each.source} -> {each.digest}, since {since}")
            for before in each.before:
                print(f"  before: {before['digest']}")
        for kind, found in packages.items():
            print(f"packages ({kind}): " + ", ".join(f"{name} {version}" for name, version in found.items()))
        return 0


class ExplainApp(StoreCommand):
    """Explain a recipe."""

    name = "carme-hub image explain"
    description = """Say in words what a recipe says: carme-hub image explain NAME|DIGEST|FILE. A file needs no store,
    so that an image.yaml can be read years later."""

    def make(self) -> int:
        """Print it."""
        (text,) = positional_arguments(self, "NAME|DIGEST|FILE")
        file = Path(text)
        recipe = read_recipe(file if file.is_file() else self.folder.find(text))
        self.print_json(recipe) if self.as_json else print(explain(recipe))
        return 0


class CheckApp(StoreCommand):
    """Check images."""

    name = "carme-hub image check"
    description = """Compare images with what was added, file by file, and their layers with their digests: carme-hub
    image check [NAME|DIGEST …], all without an argument. Exit status 1 where anything differs."""

    def make(self) -> int:
        """Print what is wrong."""
        store = self.folder
        images = [store.find(each) for each in self.extra_args] if self.extra_args else store.images()
        wrong: dict[str, list[str]] = {}
        for image in images:
            try:
                wrong[image.name] = list(check_image_files(store, image))
            except ContainerError as error:
                wrong[image.name] = [str(error)]
        if not images and not self.as_json:
            raise UsageError(f"{store.path} has no image with a digest; carme-hub image add adds one")
        if self.as_json:
            self.print_json(wrong)
        for name, lines in wrong.items() if not self.as_json else ():
            digest = name.replace("-", ":", 1)
            print(f"{digest}: as it was added" if not lines else "\n".join(f"{digest}: {line}" for line in lines))
        return int(any(wrong.values()))


def _mib(said: dict[str, Any]) -> str:
    size = said.get("size_bytes")
    return f"{size / (1 << 20):.0f}" if isinstance(size, int) else ""
