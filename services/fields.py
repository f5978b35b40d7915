"""Field types and base models that the REST interfaces of both services share: values, bodies, queries, errors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints


def _whole(value: object) -> object:
    """Read 5.0 as 5, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$")]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"[^\s\x85]")]
Seconds = Annotated[int, Field(ge=0, le=253_402_300_799, description="UTC epoch seconds"), Whole]
#: From 2001 (Slurm did not exist before) to 2100.
Moment = Annotated[int, Field(ge=978_307_200, le=4_102_444_800, description="UTC epoch seconds"), Whole]


class RequestBody(BaseModel):
    """The body of a request; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """The query of a request; texts are converted to the field's type, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class NamePageQuery(Query):
    """A page of a list that is ordered by name."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=255, description="next of the page before")] = ""


class Error(BaseModel):
    """The body of every answer that is not a success."""

    error: str
    message: str
