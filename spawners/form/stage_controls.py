"""The form's controls for data that is copied to the node before a session starts, and from it after its end."""

from __future__ import annotations

from collections.abc import Iterator

from carme_hub.domain.staging.entries import SCRATCH_GIB, STAGE_IN, STAGE_MOUNT, STAGE_OUT, ScratchOffer

_LINES = (
    (
        STAGE_IN,
        "Data to copy to the node before the start",
        "One line each: SOURCE -> NAME. A source is a path, or NAME:PATH of your rclone (S3 and others). "
        "It is in /scratch/… of the session under that name.",
    ),
    (
        STAGE_OUT,
        "Results to copy from the node after the end",
        "One line each: NAME -> TARGET. They are copied whatever ends the session, also its time limit.",
    ),
    (
        STAGE_MOUNT,
        "Object storage as folders, read-only",
        "One line each: REMOTE:PATH -> NAME. It is at /objects/NAME and not copied: slower, but nothing to wait for.",
    ),
)


def stage_controls(scratch: ScratchOffer | None) -> Iterator[tuple[str, str, str, dict[str, object]]]:
    """Yield key, label, kind and further values of each control; they are folded until something is filled in.

    Args:
        scratch: what the site offers, None for nothing, and no controls.
    """
    if scratch is None:
        return
    for key, label, hint in _LINES:
        yield key, label, "lines", {"hint": hint, "folded": True}
    most = scratch.max_gib
    hint = (
        f"1 to {most}; {scratch.default_gib} where something is copied and this is empty. "
        "A folder on the node, /scratch/…, that is gone after the end."
    )
    more = {"min": 1, "max": most, "unit": "GiB", "hint": hint, "folded": True}
    yield SCRATCH_GIB, "Scratch", "number", dict(more)
