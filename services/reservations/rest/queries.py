"""What may stand in the query of each address; what is not known is an error, as in bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from carme_hub.services.fields import Query

_TYPE = r"^[A-Za-z0-9_.-]{0,64}$"
_MOMENT = {"ge": 978_307_200, "le": 4_102_444_800}


class PeriodQuery(Query):
    """A time from and to which something is looked at; without it, from now on for 31 days. At most 400 days."""

    # serialize_by_alias: the document names them as the address does.
    model_config = ConfigDict(extra="forbid")
    begin: Annotated[int | None, Field(alias="from", **_MOMENT, description="UTC epoch seconds")] = None
    end: Annotated[int | None, Field(alias="to", **_MOMENT, description="UTC epoch seconds")] = None


class BookingsQuery(PeriodQuery):
    """Which bookings. ``mine``: those that the visitor owns or is invited to, also what was cancelled.

    Without ``state`` there are those that take GPUs: pending, confirmed, active; with ``mine`` all.
    """

    mine: Literal["true", "false"] = "false"
    state: Literal["", "draft", "pending", "confirmed", "active", "ended", "cancelled", "released"] = ""


class FreeQuery(PeriodQuery):
    """What is free of one type, or of all."""

    type: Annotated[str, Field(pattern=_TYPE)] = ""


class WordsQuery(Query):
    """In which zone times are said."""

    zone: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = "UTC"
