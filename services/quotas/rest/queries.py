"""Pydantic models of the query of each REST operation; an unknown parameter is an error, as in bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from carme_hub.services.fields import Query

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$"
#: An account or user to filter by; "" is all.
NameFilter = Annotated[str, Field(pattern=_NAME)]
Since = Annotated[int, Field(ge=0, le=253_402_300_799, description="UTC epoch seconds")]


class StatementCsvQuery(Query):
    """A filter of entries; ``since`` and ``until`` are about when they were written."""

    account: NameFilter = ""
    user: NameFilter = ""
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
    """A page of accounts, ordered by name."""

    cursor: Annotated[str, Field(max_length=255, description="next of the page before")] = ""


class RequestsQuery(PageQuery):
    """A filter and page of requests."""

    account: NameFilter = ""
    state: Literal["", "open", "approved", "denied"] = ""


class AnomaliesQuery(PageQuery):
    """Open anomalies, or decided ones."""

    settled: Literal["true", "false"] = "false"


class ReportQuery(Query):
    """A month like 2026-11; the default is this one."""

    month: Annotated[str, Field(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")] = ""
    by: Literal["user", "group", "account", "gpu"] = "account"


class RemainingQuery(Query):
    """The session, by its UUID."""

    session: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$")]
