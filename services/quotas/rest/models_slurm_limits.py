"""Pydantic models of the comparison of Slurm's own limits with the policy."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class LimitOut(BaseModel):
    """One limit in Slurm that differs from the policy, in sacctmgr's format; "" = not set. Times are minutes.

    ``by_hand``: somebody set it in Slurm, and it is kept. ``takes``: the AdminLevel that a change needs.
    """

    entity: Literal["qos", "account", "user"]
    name: str
    limit: str
    slurm: str
    policy: str
    takes: Literal["operator", "administrator"]
    by_hand: bool


class LeftOutOut(BaseModel):
    """A rule that Slurm cannot enforce: the quota's id ("" for none) and why."""

    quota: str
    why: str


class DriftOut(BaseModel):
    """Whether Slurm's limits agree with the policy.

    ``state`` is unknown while the hub does not say who is in which group; ``same`` counts limits that agree;
    ``commands`` are run by an administrator, in this order.
    """

    state: Literal["unknown", "same", "drift"]
    unknown: str
    limits: list[LimitOut]
    left_out: list[LeftOutOut]
    same: int
    commands: list[str]
