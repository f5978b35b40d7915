"""Query parameters of each path; an unknown one is an error, as in bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from carme_hub.services.fields import Query

_TYPE = r"^[A-Za-z0-9_.-]{0,64}$"
_MOMENT = {"ge": 978_307_200, "le": 4_102_444_800}


class PeriodQuery(Query):
    """The queried time; the default is the next 31 days. At most 400 days."""

    # serialize_by_alias: the document has the names of the query.
    model_config = ConfigDict(extra="forbid")
    begin: Annotated[int | None, Field(alias="from", **_MOMENT, description="UTC epoch seconds")] = None
    end: Annotated[int | None, Field(alias="to", **_MOMENT, description="UTC epoch seconds")] = None


class BookingsQuery(PeriodQuery):
    """The queried bookings. ``mine``: those that the visitor owns or is invited to, also cancelled ones.

    Without ``state`` the answer has those that take GPUs: pending, confirmed, active; with ``mine`` all.
    """

    mine: Literal["true", "false"] = "false"
    state: Literal["", "draft", "pending", "confirmed", "active", "ended", "cancelled", "released"] = ""


class FreeQuery(PeriodQuery):
    """Free GPUs of one type, or of all."""

    type: Annotated[str, Field(pattern=_TYPE)] = ""


class WordsQuery(Query):
    """The zone of times in the sentences."""

    zone: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = "UTC"
