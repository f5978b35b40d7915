"""Pydantic models of the REST interface's request bodies and answers; the OpenAPI document is made from them.

GPU time is in GPU-hours with at most three decimals where people write it (``gpu_hours``), and in whole
milli-GPU-seconds where programs add it up (``amount``). Times are UTC epoch seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from carme_hub.services.fields import Moment, Name, Reason, RequestBody, Seconds, Whole
from carme_hub.services.quotas.application.disk import DiskOut
from carme_hub.services.quotas.rest.fields import Hours


class GrantIn(RequestBody):
    """A grant of GPU time to an account, or to one of its users; with ``expires`` it is a credit."""

    account: Name
    user: Name | None = None
    gpu_hours: Hours
    reason: Reason
    expires: Seconds = 0


class TransferIn(RequestBody):
    """A transfer of GPU time from one account to another."""

    source: Name
    target: Name
    gpu_hours: Hours
    reason: Reason


class CorrectionIn(RequestBody):
    """A correction: GPU time is added to an account's balance or taken from it.

    With ``used_at`` it corrects use at that time, and counts in the limits of that time.
    """

    account: Name
    direction: Literal["add", "take"]
    gpu_hours: Hours
    reason: Reason
    user: Name | None = None
    used_at: Seconds = 0


class RequestIn(RequestBody):
    """A user's request for more GPU time for an account."""

    account: Name
    gpu_hours: Hours
    reason: Reason


class DecisionIn(RequestBody):
    """The answer to a request; ``gpu_hours`` approves another amount than the requested one.

    Without the scope to grant, ``source`` names an account of the visitor, from which GPU time is moved; without
    ``source`` it comes from what the policy lets the account's owners approve (the account's ``owners_approve_left``).
    """

    decision: Literal["approve", "deny"]
    gpu_hours: Hours | None = None
    source: Name | None = None
    reason: str = Field(default="", max_length=500)


class SettleIn(RequestBody):
    """The decision on an anomaly: charge the time in Slurm's record, charge a number of seconds, or nothing."""

    decision: Literal["charge", "charge-seconds", "ignore"]
    seconds: Annotated[int, Field(ge=0, le=10**9, description="for charge-seconds"), Whole] = 0
    reason: Reason


class AskIn(RequestBody):
    """A choice of GPUs and time whose price is requested; nothing is written."""

    account: Name
    gpu_type: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9_.-]*$")
    gpus: Annotated[int, Field(ge=0, le=1024), Whole] = 0
    minutes: Annotated[int, Field(ge=1, le=525_600), Whole]
    partition: str = Field(default="", max_length=64)
    qos: str = Field(default="", max_length=64)


class UseOut(BaseModel):
    """Use of a limit, in milli-GPU-seconds. ``left`` is null for an account without any grant."""

    used: int
    held: int
    limit: int
    left: int | None


class WindowOut(UseOut):
    """One quota on GPU time that applies to the visitor."""

    quota: str
    subject: str
    window: str
    start: int
    end: int
    soft: bool


class MayOut(BaseModel):
    """The visitor's permissions by the policy when they charge an account.

    ``priority`` is the policy's number, ``nice`` the job's nice value that follows from it.
    """

    extend: bool
    book: bool
    add_images: bool
    priority: int
    nice: int


class AccountOut(BaseModel):
    """One account as its user sees it."""

    name: str
    needs_grant: bool
    balance: UseOut
    windows: list[WindowOut]
    owner: bool
    may: MayOut


class StandingOut(BaseModel):
    """Balances and limits of the visitor, by account. ``disk`` is null if the site has no command or it failed."""

    user: str
    at: int
    accounts: list[AccountOut]
    disk: list[DiskOut] | None = None


class EntryOut(BaseModel):
    """One line of a statement."""

    id: int
    kind: Literal["grant", "hold", "charge", "release", "correction"]
    account: str
    user: str
    amount: int
    at: int
    session: str
    job_id: int
    start: int
    end: int
    gpus: str
    factor: int
    partition: str
    qos: str
    nodes: str
    reason: str
    actor: str
    expires: int


class PageOut(BaseModel):
    """A page of a list; ``next`` is the cursor of the following page, "" at the end."""

    next: str


class StatementOut(PageOut):
    """A page of a statement, newest first; ``next`` is the cursor of the following page, "" at the end."""

    entries: list[EntryOut]


class WrittenOut(BaseModel):
    """The entries of a write; a repeated request with the same idempotency key returns them again."""

    entries: list[EntryOut]


class PriceOut(BaseModel):
    """The price of a choice, and whether it would be admitted now.

    ``left_before`` is the smallest rest of the rules on GPU time and the balance; null without any limit.
    """

    amount: int
    factor: int
    left_before: int | None
    left_after: int | None
    granted: bool
    messages: list[str]
    warnings: list[str]
    possible_at: int
    largest_gpus: int
    largest_minutes: int


class RemainingOut(BaseModel):
    """How long a session may still run, and the rest of its budget.

    ``seconds`` is null while the job waits. ``left`` is null without a limit; ``budget_seconds`` is how long ``left``
    lasts at the session's rate, null without a limit or without a GPU.
    """

    session: str
    account: str
    state: str
    ends: int
    seconds: int | None
    left: int | None
    budget_seconds: int | None


class RequestOut(BaseModel):
    """A request for more GPU time; ``amount`` is what the user asked for."""

    id: str
    account: str
    user: str
    amount: int
    granted: int
    reason: str
    state: Literal["open", "approved", "denied"]
    asked: int
    decided: int
    decided_by: str
    answer: str


class RequestsOut(PageOut):
    """A page of the requests that the visitor may see, newest first."""

    requests: list[RequestOut]


class MemberOut(BaseModel):
    """One user of an account: the use of this month, and the holds of open sessions."""

    user: str
    used: int
    held: int


class OwnedOut(BaseModel):
    """One account as its owner sees it. ``granted`` less ``used`` less ``held`` is ``left``.

    ``left`` is null without any grant.

    ``owners_approve`` is the new GPU time that its owners may approve in a calendar month, ``owners_approve_left`` the
    rest of it in this month.
    """

    name: str
    owner: bool
    granted: int
    used: int
    held: int
    left: int | None
    owners_approve: int
    owners_approve_left: int
    members: list[MemberOut]


class AccountsOut(PageOut):
    """A page of the accounts that the visitor owns, or of all of them, by name."""

    month: str
    accounts: list[OwnedOut]


class AnomalyOut(BaseModel):
    """A record of Slurm's accounting on which a person has to decide."""

    id: int
    kind: str
    job_id: int
    account: str
    user: str
    found: int
    seen: dict[str, object]
    settled: int
    settled_by: str
    decision: str


class AnomaliesOut(PageOut):
    """A page of open or decided anomalies, newest first."""

    anomalies: list[AnomalyOut]


class ReconciliationOut(BaseModel):
    """The last reconciliation of the ledger with ``sacct -D``; ``difference`` is in GPU-seconds."""

    at: int
    start: int
    end: int
    jobs: int
    ledger: int
    slurm: int
    difference: int
    missing: list[str]
    extra: list[str]
    changed: list[str]
    waiting: list[str]
    decided: list[str]
    counts: dict[str, int]


class ReportRow(BaseModel):
    """One line of a report."""

    name: str
    jobs: int
    amount: int
    refunded: int
    cost: str


class ReportOut(BaseModel):
    """Use of a month by user, group, account or GPU type.

    ``total`` counts every job once. A user of several groups counts in each, so by group the rows may add up to more.
    """

    month: str
    by: Literal["user", "group", "account", "gpu"]
    currency: str
    rows: list[ReportRow]
    total: ReportRow


class PolicyOut(BaseModel):
    """The policy in force. ``stamp`` changes with it; ``fixed`` says why it cannot be changed here, "" when it can."""

    policy: dict[str, object]
    stamp: str
    problem: str
    fixed: str


class PolicyIn(RequestBody):
    """A policy to put in force; ``stamp`` is that of the policy which it replaces."""

    policy: dict[str, object]
    stamp: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: Reason


class ReconcileIn(RequestBody):
    """The time for which ledger and accounting are compared; the default is the time of the nightly run."""

    start: Moment | None = None
    end: Moment | None = None


class SettleNowIn(RequestBody):
    """Settle new records; with ``days``, all records of the last days."""

    days: Annotated[int, Field(ge=0, le=100), Whole] = 0


class SettledOut(BaseModel):
    """The numbers of entries that a settlement wrote; ``waiting`` are left to the next run."""

    charged: int
    refunded: int
    released: int
    expired: int
    flagged: int
    waiting: int


class HealthOut(BaseModel):
    """Whether the service settles; ``age`` is how many seconds ago it last did, null for never."""

    settling: bool
    age: int | None
