"""What REST says about Slurm's own limits against the policy."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class LimitOut(BaseModel):
    """One limit in Slurm that is not as the policy wants it, in sacctmgr's words; "" = not set. Times are minutes.

    ``by_hand``: somebody set it, and it is kept. ``takes``: the AdminLevel that a change needs.
    """

    entity: Literal["qos", "account", "user"]
    name: str
    limit: str
    slurm: str
    policy: str
    takes: Literal["operator", "administrator"]
    by_hand: bool


class LeftOutOut(BaseModel):
    """What Slurm cannot keep by itself: the quota's id ("" for none) and why."""

    quota: str
    why: str


class DriftOut(BaseModel):
    """Whether Slurm's limits are as the policy wants them.

    ``state`` is unknown where the hub does not say who is in which group; ``same`` counts limits that agree;
    ``commands`` are run by an administrator, in this order.
    """

    state: Literal["unknown", "same", "drift"]
    unknown: str
    limits: list[LimitOut]
    left_out: list[LeftOutOut]
    same: int
    commands: list[str]
