"""REST operations on jobs that have ended, and on what accounts did not use."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field

from carme_hub.domain.activity.finished import Unused
from carme_hub.services.activity.application.advice import DAY, Advised, advised, unused_by_account
from carme_hub.services.activity.application.view import HOUR, share
from carme_hub.services.activity.rest import models_finished as models
from carme_hub.services.activity.scopes import READ_ALL, UNUSED
from carme_hub.services.fields import Query
from carme_hub.services.rest import Call, NotOwner


class JobsQuery(Query):
    """``user``: whose jobs, "" = the visitor's; others' need the scope to read everybody's. ``days``: of their ends."""

    user: Annotated[str, Field(max_length=255)] = ""
    days: Annotated[int, Field(ge=1, le=400)] = 30


class UnusedQuery(Query):
    """``weeks``: this one and those before. ``account``: only this one, "" = all that the visitor may see."""

    weeks: Annotated[int, Field(ge=1, le=104)] = 13
    account: Annotated[str, Field(max_length=255)] = ""


async def jobs(call: Call) -> models.FinishedJobsOut:
    """Return the jobs of a user that have ended, with what is said of each."""
    query: JobsQuery = call.query
    whose = query.user or call.visitor.name
    own = call.visitor.is_user and whose == call.visitor.name
    if not own and not (query.user and call.handler.has_scope(READ_ALL)):
        raise NotOwner("These are other people's jobs.")
    found = await advised(call.service.finished_jobs, whose, time.time() - query.days * DAY)
    return models.FinishedJobsOut(user=whose, jobs=[_job(each) for each in found])


async def unused(call: Call) -> models.AccountsUnusedOut:
    """Return what accounts did not use: all of them, or those that the visitor owns in Slurm."""
    query: UnusedQuery = call.query
    everybody = call.handler.has_scope(UNUSED)
    owned = () if everybody else await call.service.owned_accounts(call.visitor)
    if not everybody and (not owned or (query.account and query.account not in owned)):
        raise NotOwner("Administrators see this, and owners of an account in Slurm see theirs.")
    found = await unused_by_account(call.service.finished_jobs, query.weeks, time.time(), query.account or None)
    return models.AccountsUnusedOut(
        accounts=[
            models.AccountUnusedOut(
                account=each.account,
                total=models.UnusedOut(**_sums(each.total)),
                weeks=[models.WeekOut(week=week, **_sums(of)) for week, of in each.weeks],
            )
            for each in found
            if everybody or each.account in owned
        ]
    )


def _job(each: Advised) -> models.FinishedJobOut:
    job, said = each.job, each.said
    asked, used = job.asked, job.used
    return models.FinishedJobOut(
        job_id=job.job_id,
        shown_id=job.shown_id or str(job.job_id),
        session=job.session,
        name=job.name,
        image=job.image,
        working_folder=job.folder,
        account=job.account,
        partition=job.partition,
        state=job.state,
        submitted=int(job.submitted),
        started=int(job.started),
        ended=int(job.ended),
        source=job.source,
        virtual=asked.virtual,
        asked=models.AskedOut(
            gpus=asked.gpus,
            gpu_type=job.gpu_type,
            nodes=job.nodes,
            cpus=asked.cpus,
            memory_mib=asked.memory_mib,
            minutes=asked.minutes,
        ),
        used=models.UsedOut(
            gpus=used.gpus_used,
            gpu_utilisation=used.gpu_utilisation,
            gpu_memory_mib=used.gpu_memory,
            nodes=job.nodes_used,
            cpus=used.cpus,
            cpus_most=used.cpus_most,
            memory_mib=used.memory,
            seconds=int(job.seconds),
        ),
        line=said.line,
        suggestion=said.suggestion,
        note=said.note,
        sooner=job.sooner,
    )


def _sums(of: Unused) -> dict[str, Any]:
    names = {
        **{f"gpu_hours{part}": f"gpu{part}" for part in ("", "_unused", "_unknown")},
        **{f"cpu_hours{part}": f"cpu{part}" for part in ("", "_unused", "_unknown")},
        **{f"memory_gib_hours{part}": f"memory{part}" for part in ("", "_unused", "_unknown")},
    }
    busy = share(of.gpu_busy, of.gpu_measured)
    hours = {name: round(getattr(of, source) / HOUR, 3) for name, source in names.items()}
    return {"jobs": of.jobs, "gpu_busy": None if busy is None else round(100 * busy, 1), **hours}
