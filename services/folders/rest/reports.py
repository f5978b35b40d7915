"""Where jobs report: ``POST api/v1/jobs/<id>/report`` with ``Authorization: carme-nonce NONCE``.

Only the nonce of the job counts: no login, cookie or token of the hub. A refusal (4xx) tells the job to give up; 503,
and everything from a proxy, tells it to send the report again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado.web import HTTPError

from carme_hub.domain.folders.jobs import JobKind
from carme_hub.folders.jobs import ReportRefused
from carme_hub.services.handlers import ApiHandler
from carme_hub.services.rest import ROOT, error_sentence

_SCHEME = "carme-nonce "
LARGEST_BODY = 256 << 10
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Name = Annotated[str, Field(max_length=1000)]
#: As ``domain.folders.jobs.FAULTS`` has them.
Fault = Literal["differs", "missing", "unreadable", "outside"]


class _Part(BaseModel):
    """A part of a report; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FolderIn(_Part):
    """A folder in a measured one, with all that is below it."""

    path: _Name
    bytes: _Count
    files: _Count


class MeasuredIn(_Part):
    """What a measurement has found (``carme_hub.files.measure``)."""

    root: _Name
    bytes: _Count
    files: _Count
    complete: bool
    folders: Annotated[list[FolderIn], Field(max_length=50)]


class VerifiedIn(_Part):
    """What a comparison with a list of checksums has found (``domain.folders.jobs``)."""

    files: _Count
    verified: _Count
    differs: _Count
    missing: _Count
    unreadable: _Count
    outside: _Count
    bad_lines: _Count
    unlisted: _Count | None
    bytes: _Count
    complete: bool
    names: dict[Fault, Annotated[list[_Name], Field(max_length=50)]]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ReportIn(_Part):
    """How far a job is, or what it has found."""

    state: Literal["running", "done", "failed"]
    files: _Count = 0
    total_files: _Count = 0
    bytes: _Count = 0
    total_bytes: _Count = 0
    problem: Annotated[str, Field(max_length=1000)] = ""
    result: dict[str, Any] | None = None


class ReportHandler(ApiHandler):
    """Accepts the reports of one job."""

    def check_xsrf_cookie(self) -> None:
        """Skip the XSRF check, since cookies do not count here."""

    async def authenticate(self) -> None:
        """Skip the hub's login: only the job's nonce counts."""

    async def post(self, id: str) -> None:
        """Check the report, and answer 204 when it is stored."""
        jobs, given = self.service.jobs, self.request.headers.get("Authorization", "")
        try:
            if not given.startswith(_SCHEME):
                raise ReportRefused("The nonce of the job is missing.")
            job = await jobs.known(id, given.removeprefix(_SCHEME).strip())
        except ReportRefused as error:
            raise HTTPError(403, log_message=str(error)) from error
        if len(self.request.body) > LARGEST_BODY:
            raise HTTPError(413, log_message=f"A report has at most {LARGEST_BODY} bytes.")
        self.body_json()
        try:
            sent = ReportIn.model_validate_json(self.request.body)
            if sent.state == "done":
                model = MeasuredIn if job.kind is JobKind.MEASURE else VerifiedIn
                await jobs.done(job, model.model_validate(sent.result).model_dump())
            elif sent.state == "failed":
                await jobs.failed(job, sent.problem or "It has failed.")
            else:
                counts = sent.model_dump(include={"files", "total_files", "bytes", "total_bytes"})
                await jobs.progress(job, counts)
        except ValidationError as error:
            raise HTTPError(422, log_message=error_sentence(error)) from error
        self.set_status(204)


REPORTS: list[tuple[str, type[ReportHandler]]] = [(ROOT + r"jobs/([0-9a-f-]{36})/report", ReportHandler)]
