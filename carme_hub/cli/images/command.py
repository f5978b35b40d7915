"""``carme-hub image``: add images to the site's store, look at them, keep them right, or build the default one."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class ImageApp(CommandGroup):
    """The commands on container images."""

    name = "carme-hub image"
    description = """The site's image store. An image is its digest; a name stands for one, and stands for another only
    after `update`. What is added is unpacked by an account without rights, and hardened. All but list, show, explain,
    check, and those on images of your own, need the owner of the store, root."""

    subcommands: Any = {
        "add": ("carme_hub.cli.images.add.AddApp", "Add an image from a registry, a layout, an archive or a folder"),
        "update": ("carme_hub.cli.images.add.UpdateApp", "Let a name stand for what its source has now"),
        "rebuild": ("carme_hub.cli.images.add.RebuildApp", "Add again what a recipe, image.yaml, names"),
        "list": ("carme_hub.cli.images.show.ListApp", "List names, digests, and since when each name stands for one"),
        "show": ("carme_hub.cli.images.show.ShowApp", "Show all that is known of an image"),
        "explain": ("carme_hub.cli.images.show.ExplainApp", "Say in words what a recipe says"),
        "check": ("carme_hub.cli.images.show.CheckApp", "Compare images with what was added"),
        "remove": ("carme_hub.cli.images.keep.RemoveApp", "Remove a name; its image stays until collect"),
        "pin": ("carme_hub.cli.images.keep.PinApp", "Keep an image although no name stands for it"),
        "unpin": ("carme_hub.cli.images.keep.UnpinApp", "Do not keep it any more"),
        "collect": ("carme_hub.cli.images.keep.CollectApp", "Remove images and layers that nothing names any more"),
        "build": ("carme_hub.cli.images.build.BuildApp", "Build an image of your own in a job, or the default image"),
        "mine": ("carme_hub.cli.images.own.MineApp", "List the images that you have built"),
        "discard": ("carme_hub.cli.images.own.DiscardApp", "Remove an image of your own, or end its build"),
        "publish": ("carme_hub.cli.images.publish.PublishApp", "Add to the store what users offer to others"),
    }
