"""What REST takes and gives where a policy is tried."""

from __future__ import annotations

from pydantic import BaseModel

from carme_hub.services.fields import Moment, RequestBody


class ReplayIn(RequestBody):
    """A policy (as the file has it) that is tried on what was used between two times."""

    policy: dict[str, object]
    start: Moment
    end: Moment


class ReplayRow(BaseModel):
    """What a policy would have done to one user's jobs. ``amount`` is what they used."""

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

    Use from ``counted_from`` on fills the policy's windows (0 = since ever); the first job that Slurm's accounting
    knows of it is of ``known_from`` (0 = none). ``missing`` is what the ledger has from between.
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
