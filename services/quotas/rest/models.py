"""What the REST interface takes and gives, as pydantic models; the OpenAPI document is made from them.

GPU time is in GPU-hours with at most three decimals where people write it, and in whole milli-GPU-seconds
(``amount``) where programs add it up. Times are UTC epoch seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from carme_hub.services.fields import Moment, Name, Reason, RequestBody, Seconds, Whole
from carme_hub.services.quotas.application.disk import DiskOut
from carme_hub.services.quotas.rest.fields import Hours


class GrantIn(RequestBody):
    """GPU time for an account, or for one of its users; with ``expires`` it is a credit."""

    account: Name
    user: Name | None = None
    gpu_hours: Hours
    reason: Reason
    expires: Seconds = 0


class TransferIn(RequestBody):
    """GPU time from one account to another."""

    source: Name
    target: Name
    gpu_hours: Hours
    reason: Reason


class CorrectionIn(RequestBody):
    """A mistake put right: GPU time is added to an account's balance or taken from it.

    With ``used_at`` it is about use at that moment, and counts in the limits of then.
    """

    account: Name
    direction: Literal["add", "take"]
    gpu_hours: Hours
    reason: Reason
    user: Name | None = None
    used_at: Seconds = 0


class RequestIn(RequestBody):
    """A user asks for more GPU time for an account."""

    account: Name
    gpu_hours: Hours
    reason: Reason


class DecisionIn(RequestBody):
    """The answer to a request; ``gpu_hours`` gives another amount than was asked for.

    Who does not have the scope to grant names an account of theirs in ``source``, from which it is moved, or gives out
    of what the policy lets the account's owners approve (``owners_approve_left`` of the account).
    """

    decision: Literal["approve", "deny"]
    gpu_hours: Hours | None = None
    source: Name | None = None
    reason: str = Field(default="", max_length=500)


class SettleIn(RequestBody):
    """What a person decided about an anomaly: charge what Slurm says, charge so many seconds, or nothing."""

    decision: Literal["charge", "charge-seconds", "ignore"]
    seconds: Annotated[int, Field(ge=0, le=10**9, description="for charge-seconds"), Whole] = 0
    reason: Reason


class AskIn(RequestBody):
    """A choice whose price is wanted; nothing is written."""

    account: Name
    gpu_type: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9_.-]*$")
    gpus: Annotated[int, Field(ge=0, le=1024), Whole] = 0
    minutes: Annotated[int, Field(ge=1, le=525_600), Whole]
    partition: str = Field(default="", max_length=64)
    qos: str = Field(default="", max_length=64)


class UseOut(BaseModel):
    """Use against a limit, in milli-GPU-seconds. ``left`` is null for an account that was never given anything."""

    used: int
    held: int
    limit: int
    left: int | None


class WindowOut(UseOut):
    """One quota on GPU time that counts for the visitor."""

    quota: str
    subject: str
    window: str
    start: int
    end: int
    soft: bool


class MayOut(BaseModel):
    """What the policy allows the visitor who charges an account.

    Booking GPUs and adding images ask here as soon as users can do them. ``priority`` is the policy's number, ``nice``
    what sessions get for it.
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
    """What the visitor has, by account. ``disk`` is null where the site does not tell it, or not just now."""

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
    """The entries that a write made; the same idempotency key gives the same ones again."""

    entries: list[EntryOut]


class PriceOut(BaseModel):
    """What a choice costs, and whether it would be admitted now.

    ``left_before`` is what is left in the tightest of the rules on GPU time and the balance; null where none limits it.
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
    """How long a session may still run, and what is left of the budget that pays for it.

    ``seconds`` is null while the job waits. ``left`` is null where nothing limits it; ``budget_seconds`` is for how
    long that would last at the session's own rate, null where nothing limits it or it has no GPU.
    """

    session: str
    account: str
    state: str
    ends: int
    seconds: int | None
    left: int | None
    budget_seconds: int | None


class RequestOut(BaseModel):
    """A request for more GPU time; ``amount`` was asked for, ``granted`` was given."""

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
    """One user of an account: what was used this month, and what open sessions hold."""

    user: str
    used: int
    held: int


class OwnedOut(BaseModel):
    """One account as its owner sees it. ``granted`` less ``used`` less ``held`` is ``left``.

    ``left`` is null where nothing was ever granted.

    ``owners_approve`` is what its owners may approve in a calendar month out of nothing, ``owners_approve_left`` what
    is left of it in this one.
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
    """Something in Slurm's accounting that a person has to look at."""

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
    """A page of what waits for a person, or was decided, newest first."""

    anomalies: list[AnomalyOut]


class ReconciliationOut(BaseModel):
    """The last comparison of the ledger with ``sacct -D``; ``difference`` is in milli-GPU-seconds."""

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

    ``total`` counts every job once. Who is in several groups counts in each, so by group the rows may add up to more.
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
    """A policy that is switched on; ``stamp`` is that of the policy which it replaces."""

    policy: dict[str, object]
    stamp: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: Reason


class ReconcileIn(RequestBody):
    """The time for which ledger and accounting are compared; without it, the last days that are looked at nightly."""

    start: Moment | None = None
    end: Moment | None = None


class SettleNowIn(RequestBody):
    """Settle what is new; with ``days`` everything of the last days."""

    days: Annotated[int, Field(ge=0, le=100), Whole] = 0


class SettledOut(BaseModel):
    """How many entries one run of settling wrote; ``waiting`` come with the next run."""

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
