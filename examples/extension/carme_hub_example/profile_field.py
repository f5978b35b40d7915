"""A profile field: the user enters the name of a data set, and the session gets the path of its folder."""

import re

from carme_hub.domain.sessions.profile import ProfileField
from carme_hub.errors import Refused


def folder(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]{1,40}", name):
        raise Refused("the name of a data set has small letters, digits and hyphens.")
    return f"/data/{name}"


DATASET = ProfileField(
    name="dataset",
    display_name="Data set",
    description="Its folder is $CARME_FIELD_DATASET in your session.",
    check=folder,
)
