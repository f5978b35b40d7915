"""Batch jobs from outside of a session, on a login node or a laptop: user options of a server say what they get.

They are requested as a session with these options would do it, so the same limits, price and policy hold. Such a
session is never stored. Where the home is another one than that of the cluster, the files of the run come with the
request, and its program writes them into the home (``carme_hub.training.conduct_batch``).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from jupyterhub.utils import maybe_future

from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import Refused
from carme_hub.spawners.form.options import checked_options
from carme_hub.spawners.hub.shared import HubContext

#: The Python of an image that is looked for in its PATH, where the caller does not see the image.
PYTHON = "python3"
#: The most files of a run, and the most characters of all of them: they are a part of the job's data document, which is
#: one variable of at most 128 KiB.
MAX_FILES, MAX_FILES_TEXT = 16, 32 << 10
_FILE_NAME = re.compile(r"[a-z0-9][A-Za-z0-9._-]{0,63}")


async def origin_of(hub: HubContext, spawner: Any, user_options: object) -> Session:
    """Return the session, which is not stored, from which a batch job of the spawner's user is requested.

    Raises:
        Refused: the options are not allowed.
    """
    offer = await spawner.offer()
    request = offer.choose(checked_options(user_options))
    if request.node:
        raise Refused("A batch job is not bound to one node. Leave node out.", reason="bad-options")
    if spawner.admission is not None:
        await maybe_future(spawner.admission(spawner, request))
    user = str(spawner.user.name)
    return Session(
        id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"carme-hub:{hub.registry.cluster}:{user}")),
        cluster=hub.registry.cluster,
        user=user,
        server_name="",
        request=request,
        state=SessionState.RUNNING,
        created=time.time(),
    )


def checked_files(files: object) -> Mapping[str, str]:
    """Return the files of a run that come with a request: texts by name.

    Raises:
        Refused: they are not that, or too many or too large.
    """
    if not isinstance(files, dict) or len(files) > MAX_FILES:
        raise Refused(f"files is an object of at most {MAX_FILES} texts by name.", reason="bad-files")
    for name, text in files.items():
        if not isinstance(text, str) or not _FILE_NAME.fullmatch(name):
            raise Refused(f"files: {name[:64]!r} is not the name of a file with a text.", reason="bad-files")
    size = sum(map(len, files.values()))
    if size > MAX_FILES_TEXT:
        raise Refused(
            f"The files of the run are too large to be sent: {size >> 10} KiB, and at most {MAX_FILES_TEXT >> 10}. "
            "Put the code into your home on the cluster, and send a short script that runs it.",
            reason="too-large",
        )
    return files
