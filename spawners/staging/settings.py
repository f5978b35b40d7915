"""The administrator's settings for scratch folders and for the data that sessions copy (``CarmeStaging``)."""

from __future__ import annotations

from typing import Any

from traitlets import Integer, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from carme_hub.domain.staging.entries import ScratchOffer


class CarmeStaging(LoggingConfigurable):
    """Data that is on the node when a session starts, and safe when it ends.

    Slurm's Prolog and Epilog call ``carme-stage-out`` on the nodes; docs/howto/stage-data.md says how.
    """

    root = Unicode(
        "",
        help="""The folder of nodes below which each session gets its scratch folder: ``root`` of
        ``carme-stage-out.json`` on the nodes. The default, empty: sessions get none, and copy no data. Example:
        ``"/scratch"``.""",
    ).tag(config=True)

    max_gib = Integer(
        100, min=1, help="Most GiB of scratch for a session; the nodes' own ``max_gib`` counts too. Example: ``500``."
    ).tag(config=True)

    default_gib = Integer(
        10, min=1, help="GiB of scratch for a session that copies data and names no number. Example: ``50``."
    ).tag(config=True)

    start_minutes = Integer(
        60,
        min=1,
        help="""Minutes that copying data to the node may take before a start fails; they are added to
        ``start_timeout`` for sessions that copy data. Example: ``240``.""",
    ).tag(config=True)

    parallel = Integer(4, min=1, max=64, help="Files that are copied at a time. Example: ``8``.").tag(config=True)

    rclone = Unicode(
        "/usr/bin/rclone",
        help="Path of rclone on the nodes, for S3 and whatever else it speaks. Example: ``/opt/rclone/rclone``.",
    ).tag(config=True)

    @validate("root")
    def _absolute(self, proposal: Any) -> str:
        value = str(proposal["value"]).rstrip("/")
        if value and (not value.startswith("/") or ".." in value.split("/")):
            raise TraitError("CarmeStaging.root is an absolute path, such as /scratch, or empty")
        return value

    def offer(self) -> ScratchOffer | None:
        """Return what sessions may ask for, None for nothing."""
        return ScratchOffer(self.max_gib, min(self.default_gib, self.max_gib)) if self.root else None
