"""``carme-hub image add``, ``update`` and ``rebuild``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from traitlets import Enum, Float, Integer, Unicode

from carme_hub.cli.base import UsageError, positional_arguments
from carme_hub.containers.store.add import AddOptions, add_image, rebuild_image, update_image
from carme_hub.containers.store.bounds import GIB, Bounds
from carme_hub.containers.store.packages import difference
from carme_hub.containers.store.recipe import about, read_recipe
from carme_hub.containers.store.source import parse_source
from carme_hub.containers.store.trust import read_trust

from .store_command import StoreCommand


class BringCommand(StoreCommand):
    """A command that brings an image into the store; it prints a path, and its progress as errors are."""

    authfile = Unicode(
        "",
        help="""A file with passwords for registries, as `podman login --authfile=FILE` or `skopeo login` writes it;
        only you may read it (0600). Empty: without a password.""",
    ).tag(config=True)
    policy = Unicode(
        "",
        help="""The signature policy, a containers-policy.json(5): who must have signed images of which registry. Empty:
        /etc/carme-hub/image-policy.json, or else /etc/containers/policy.json; without both, signatures are not
        checked.""",
    ).tag(config=True)
    registries_d = Unicode(
        "",
        help="""The folder that says where signatures of a registry's images are, containers-registries.d(5). Empty:
        that of the system, /etc/containers/registries.d.""",
    ).tag(config=True)
    max_gib = Float(64.0, min=0.001, help="The most GiB of an image, packed, and again unpacked.").tag(config=True)
    max_files = Integer(2_000_000, min=1, help="The most files, folders and links of an image.").tag(config=True)
    max_minutes = Float(120.0, min=0.01, help="The most minutes that it may take.").tag(config=True)

    aliases: Any = {
        **StoreCommand.aliases,
        "authfile": "BringCommand.authfile",
        "policy": "BringCommand.policy",
        "registries-d": "BringCommand.registries_d",
        "max-gib": "BringCommand.max_gib",
        "max-files": "BringCommand.max_files",
        "max-minutes": "BringCommand.max_minutes",
    }

    def options(self, form: Any = "dir") -> AddOptions:
        """Return how images are added."""
        files = (self.policy, self.authfile, self.registries_d)
        trust = read_trust(*(Path(each) if each else None for each in files))
        bounds = Bounds(int(self.max_gib * GIB), self.max_files, 60 * self.max_minutes)
        return AddOptions(form=form, bounds=bounds, trust=trust)


class AddApp(BringCommand):
    """Add an image."""

    name = "carme-hub image add"
    description = """Add an image to the store: carme-hub image add NAME SOURCE, or SOURCE alone, which gives the name.
    SOURCE is docker://REGISTRY/NAME:TAG or docker://REGISTRY/NAME@sha256:DIGEST (any registry), oci:FOLDER[:NAME],
    oci-archive:FILE, docker-archive:FILE, a .sif, .sqsh or tar file, or a folder. A tag is resolved once, and the name
    keeps to that digest until `carme-hub image update`. An interrupted command goes on with the layers that it has."""
    examples = "sudo carme-hub image add lab-2026 docker://quay.io/jupyter/pytorch-notebook:cuda12-latest"

    text = Unicode("", help="One line that users see beside the image's name. Empty by default.").tag(config=True)
    form = Enum(
        ("dir", "sqfs"),
        default_value="dir",
        help="""dir: a folder, for bubblewrap and Podman. sqfs: one squashfs file, for Charliecloud, Apptainer and
        Enroot on a parallel file system, where thousands of small files are slow.""",
    ).tag(config=True)
    aliases: Any = {**BringCommand.aliases, "description": "AddApp.text", "format": "AddApp.form"}

    def make(self) -> int:
        """Add the image that the arguments name, and print its path."""
        if len(self.extra_args) not in (1, 2):
            raise UsageError("usage: carme-hub image add [NAME] SOURCE [options]; see --help")
        source = parse_source(self.extra_args[-1])
        name = self.extra_args[0] if len(self.extra_args) == 2 else source.default_name()
        path = add_image(source, Path(self.store), name, self.text, self.note, self.options(self.form))
        said = about(path)
        if self.as_json:
            self.print_json({"name": name, "path": str(path), "digest": said["digest"], "source": said["source"]})
        else:
            self.note(f"{name} is {said['digest']}")
            print(path)
        return 0


class UpdateApp(BringCommand):
    """Let a name stand for another image."""

    name = "carme-hub image update"
    description = """Ask the source of NAME again, and let NAME stand for what is there now: carme-hub image update
    NAME. Sessions that run keep the image that they have; what changed is printed."""

    def make(self) -> int:
        """Update the name that the argument names."""
        (name,) = positional_arguments(self, "NAME")
        before = self.folder.named(name)
        old = about(Path(self.store) / name) if before is not None else {}
        now = update_image(Path(self.store), name, self.note, self.options())
        changed = before is None or before.image != now.image
        lines = difference(old.get("packages") or {}, about(Path(self.store) / name).get("packages") or {})
        if self.as_json:
            said = {"name": name, "digest": now.digest, "changed": changed, "packages": lines}
            self.print_json({**said, "before": before.digest if before else ""})
        elif changed and before is not None:
            print(f"{name} was {before.digest} and is {now.digest}", *lines, sep="\n")
        else:
            print(f"{name} is {now.digest}, as since {time.strftime('%Y-%m-%d', time.localtime(now.since))}")
        return 0


class RebuildApp(BringCommand):
    """Add again what a recipe names."""

    name = "carme-hub image rebuild"
    description = """Add again the image of a recipe, by its digest: carme-hub image rebuild NAME RECIPE. RECIPE is an
    image.yaml, or the folder of an image. The packages found are compared with those of the recipe; 1 if any differ."""

    def make(self) -> int:
        """Add it and compare."""
        name, file = positional_arguments(self, "NAME", "RECIPE")
        recipe = read_recipe(Path(file))
        path = rebuild_image(recipe, Path(self.store), name, self.note, self.options())
        lines = difference(recipe.get("packages") or {}, about(path).get("packages") or {})
        if self.as_json:
            self.print_json({"name": name, "path": str(path), "digest": recipe["digest"], "differs": lines})
        else:
            print(path, *lines, sep="\n")
        return int(bool(lines))
