"""What may stand in the query of each address; what is not known is an error, as in bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from carme_hub.services.fields import Query

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$"
#: An account or user to narrow down to; "" is all.
Wanted = Annotated[str, Field(pattern=_NAME)]
Since = Annotated[int, Field(ge=0, le=253_402_300_799, description="UTC epoch seconds")]


class Nothing(Query):
    """No query at all."""


class StatementCsvQuery(Query):
    """Which entries; ``since`` and ``until`` are about when they were written."""

    account: Wanted = ""
    user: Wanted = ""
    session: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$")] = ""
    kind: Literal["", "grant", "hold", "charge", "release", "correction"] = ""
    since: Since = 0
    until: Since = 0


class PageQuery(Query):
    """A page of a list."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$", description="next of the page before")] = ""


class StatementQuery(StatementCsvQuery, PageQuery):
    """A page of entries."""


class AccountsQuery(PageQuery):
    """A page of accounts; they go by their names."""

    cursor: Annotated[str, Field(max_length=255, description="next of the page before")] = ""


class RequestsQuery(PageQuery):
    """Which requests."""

    account: Wanted = ""
    state: Literal["", "open", "approved", "denied"] = ""


class AnomaliesQuery(PageQuery):
    """Those that wait, or those that were decided."""

    settled: Literal["true", "false"] = "false"


class ReportQuery(Query):
    """A month like 2026-11; the default is this one."""

    month: Annotated[str, Field(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")] = ""
    by: Literal["user", "group", "account", "gpu"] = "account"


class RemainingQuery(Query):
    """The session, by its UUID."""

    session: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$")]
