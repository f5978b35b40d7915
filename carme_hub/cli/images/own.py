"""``carme-hub image mine`` and ``discard``: images of one's own. Sessions have the same commands."""

from __future__ import annotations

from carme_hub.cli.train import DelegatedCommand


class _OwnImages(DelegatedCommand):
    """A command on images of one's own."""

    command_name = "image"
    word = ""

    def initialize(self, argv: list[str] | None = None) -> None:
        """Keep the arguments."""
        super().initialize([self.word, *(argv or ())])


class MineApp(_OwnImages):
    """List images of one's own."""

    name, word = "carme-hub image mine", "mine"
    description = """List the images that you have built, and remove files of those that are gone: `carme-hub image
    mine`. Outside of a session name the hub with `--hub`, `--token-file` and `--ca`, as for [building
    one](../howto/build-an-image.md#on-a-page-or-from-elsewhere)."""


class DiscardApp(_OwnImages):
    """Remove an image of one's own."""

    name, word = "carme-hub image discard", "discard"
    description = """Remove an image of your own, or end its build: `carme-hub image discard NAME`."""
