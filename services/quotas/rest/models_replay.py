"""Pydantic models of the REST operation that replays past jobs under a policy."""

from __future__ import annotations

from pydantic import BaseModel

from carme_hub.services.fields import Moment, RequestBody


class ReplayIn(RequestBody):
    """A policy, in the structure of its file, and the times between which past jobs are replayed."""

    policy: dict[str, object]
    start: Moment
    end: Moment


class ReplayRow(BaseModel):
    """The outcome for one user's jobs. ``amount`` is what they used."""

    user: str
    account: str
    jobs: int
    refused: int
    soft: int
    amount: int
    amount_refused: int
    first: str


class ReplayOut(BaseModel):
    """The outcome of a replay, most refused first; ``rules`` counts by rule.

    Use since ``counted_from`` counts in the policy's windows (0 = all use); the first job of that time in Slurm's
    accounting is of ``known_from`` (0 = none). ``missing`` is the ledger's use between these two times.
    """

    jobs: int
    refused: int
    amount: int
    amount_refused: int
    rules: dict[str, int]
    counted_from: int
    known_from: int
    missing: int
    rows: list[ReplayRow]
