"""The hub's interface for images of one's own, and the log of a build: for the command, and for JupyterLab's panel."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from carme_hub.training.session.companions import TIME_LIMIT, Hub, NoHub, Refused
from carme_hub.training.session.user_jobs import hub_of_user

#: Bytes of a log that are read at once.
MOST_LOG = 1 << 20


def builds_of_user(environ: Mapping[str, str] = os.environ, time_limit: float = TIME_LIMIT) -> Hub:
    """Return the interface for the images of this session's user."""
    reached = hub_of_user(environ, time_limit)
    return replace(reached, url=reached.url.removesuffix("batch-jobs") + "image-builds")


def builds_of_session(environ: Mapping[str, str] = os.environ, time_limit: float = TIME_LIMIT) -> Hub:
    """Return the interface by which an image is built on top of this session's."""
    session = Hub.from_environ(environ)
    return replace(session, url=session.url.removesuffix("companions") + "image-builds", time_limit=time_limit)


def open_build(hub: Hub, body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Have an image built, once for each key, also where the first answer is lost."""
    try:
        return hub.ask("POST", "", body, key)
    except NoHub:
        return hub.ask("POST", "", body, key)


def log_part(hub: Hub, id: str, since: int, most: int = MOST_LOG) -> tuple[str, int]:
    """Return what the log of a build has from an offset on, at most so many bytes, and the offset after it.

    It is in this home, or else the hub reads it; while it cannot be read nothing is returned.
    """
    file = Path.home() / ".carme/sessions" / str(uuid.UUID(id)) / "job.log"
    try:
        with file.open("rb") as opened:
            opened.seek(since)
            raw = opened.read(most)
    except OSError:
        try:
            said = hub.ask("GET", f"/{id}/log?from={since}")
        except (NoHub, Refused):
            return "", since
        return str(said.get("text", "")), int(said.get("end", since))
    if len(raw) == most:  # the rest of a line comes with the next part
        raw = raw[: raw.rfind(b"\n") + 1] or raw
    return raw.decode("utf-8", "replace"), since + len(raw)
