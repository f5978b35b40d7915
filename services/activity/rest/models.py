"""What reporters send and what REST answers. Everything that a reporter sends comes from a user's own machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from carme_hub.domain.activity.minutes import GpuMinute, Minute

#: The largest body: 60 minutes of 64 GPUs, with room.
LARGEST_BODY = 1 << 20
#: Pattern of a session's id.
ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_Mib = Annotated[int, Field(ge=0, le=1 << 34)]
_Kib = Annotated[int, Field(ge=0, le=1 << 44)]
_Name = Annotated[str, Field(max_length=96, pattern=r"^[^\x00-\x1f\x7f]*$")]
_Count = Annotated[int, Field(ge=0, le=100_000)]
_Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class GpuMinuteIn(BaseModel):
    """One GPU in a minute; what is left out is unknown."""

    model_config = ConfigDict(extra="forbid")

    utilisation: _Percent | None = None
    utilisation_most: Annotated[int, Field(ge=0, le=100)] | None = None
    memory: _Mib | None = None
    power: Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)] | None = None
    temperature: Annotated[int, Field(ge=-50, le=250)] | None = None
    throttled: Annotated[int, Field(ge=0, le=60)] | None = None
    ecc: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    xids: Annotated[list[Annotated[int, Field(ge=0, le=9999)]], Field(max_length=16)] = []


class MinuteIn(BaseModel):
    """A minute of a job on one node; what is left out is unknown."""

    model_config = ConfigDict(extra="forbid")

    at: Annotated[int, Field(ge=0, le=1 << 40)]
    seconds: Annotated[int, Field(ge=0, le=60)]
    cpu: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    memory: _Mib | None = None
    read: _Kib | None = None
    written: _Kib | None = None
    gpus: Annotated[list[GpuMinuteIn], Field(max_length=64)] = []
    kernels: _Count | None = None
    terminals: _Count | None = None
    runs: _Count | None = None

    def to_domain(self) -> Minute:
        """Return it as the domain has it."""
        gpus = tuple(GpuMinute(**{**gpu.model_dump(), "xids": tuple(gpu.xids)}) for gpu in self.gpus)
        return Minute(**{**self.model_dump(exclude={"gpus"}), "gpus": gpus})


class GpuIn(BaseModel):
    """A GPU of the job: ``memory`` in MiB."""

    model_config = ConfigDict(extra="forbid")

    uuid: _Name
    name: _Name
    memory: _Mib


class ReportIn(BaseModel):
    """Minutes of a session on one node, as ``carme-report`` sends them; ``now`` is its clock."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1]
    session: Annotated[str, Field(pattern=ID)]
    node: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9._-]*$")]
    now: Annotated[float, Field(ge=0, le=1 << 40, allow_inf_nan=False)]
    virtual: bool = False
    memory_limit: _Mib = 0
    cpus: Annotated[int, Field(ge=0, le=100_000)] = 0
    gpus: Annotated[list[GpuIn], Field(max_length=64)] = []
    minutes: Annotated[list[MinuteIn], Field(min_length=1, max_length=60)]


class GpuOut(BaseModel):
    """One GPU in a minute or, with ``at`` of an hour, in the hour; null is unknown."""

    utilisation: float | None
    utilisation_most: int | None
    memory: int | None
    power: float | None
    temperature: int | None
    throttled: int | None
    ecc: int | None
    xids: dict[str, int]


class PointOut(BaseModel):
    """A minute, or an hour where the minutes are kept no more: ``cpus`` that were used, ``memory`` in MiB."""

    at: int
    seconds: int
    cpus: float | None
    memory: int | None
    read: int | None
    written: int | None
    gpus: list[GpuOut]


class NodeOut(BaseModel):
    """What a session used on one node: in all, and over time. ``gpus``: uuid, name and memory of each."""

    node: str
    until: int
    virtual: bool
    memory_limit: int
    cpus: int
    gpus: list[GpuIn]
    total: PointOut
    points: list[PointOut]


class SessionOut(BaseModel):
    """What a session uses; ``nodes`` is empty where nothing was reported."""

    session: str
    user: str
    server_name: str
    parent: str
    state: str
    nodes: list[NodeOut]


class SessionsOut(BaseModel):
    """Open sessions with their last minutes."""

    at: int
    sessions: list[SessionOut]
