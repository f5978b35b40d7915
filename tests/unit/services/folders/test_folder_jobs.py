"""Jobs that look at a folder: submitted as who manages it, run as they are, reported by their nonce alone."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_folder_jobs import SlurmThatRunsWhenTold
from forged_folders_service import PREFIX, Site, running

from carme_hub.folders import jobs as folder_jobs


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(folder_jobs.pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=f"/home/{name}"))
    async with running(tmp_path, monkeypatch, job_options={"partition": "cpu", "constraint": "fast"}) as found:
        await found.done("ann", "POST", "folders", {"name": "genomes", "description": "Beetles"})
        yield found


@pytest.fixture
def slurm(site: Site) -> SlurmThatRunsWhenTold:
    """What jobs are submitted to; they report to the service as it really listens."""
    found = SlurmThatRunsWhenTold()
    site.service.jobs._client = found  # type: ignore[assignment]
    site.service.jobs._address = site.url
    return found


def dataset(place: Path) -> Path:
    """Make files with their checksums: all as listed but one that differs, one that is missing, and a way out."""
    data = place / "data"
    (data / "inner").mkdir(parents=True)
    lines = []
    for name in ("a.csv", "inner/b.csv", "changed", "new\nline"):
        (data / name).write_text(name)
        digest, escaped = hashlib.sha256(name.encode()).hexdigest(), name.replace("\n", "\\n")
        lines.append(f"{'' if escaped == name else chr(92)}{digest}  {escaped}")
    (data / "changed").write_text("not what it was")
    (place / "secret").write_text("x")
    (data / "link").symlink_to(place / "secret")
    digest = hashlib.sha256(b"x").hexdigest()
    lines += [
        f"{digest} *gone",
        f"{digest}  ../secret",
        f"{digest}  link",
        f"SHA256 (b) = {digest}",
        "# a comment",
        "no",
    ]
    (data / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    (data / "unlisted").write_text("x")
    return data


async def test_a_folder_is_compared_with_its_checksums(
    site: Site, slurm: SlurmThatRunsWhenTold, tmp_path: Path
) -> None:
    await site.done("ann", "PATCH", "folders/genomes", {"checksums": "SHA256SUMS"})
    job = await site.done("ann", "POST", "folders/genomes/verify")
    assert (job["state"], job["user"], job["job"]) == ("waiting", "ann", 41)
    [spec] = slurm.specs
    assert (spec.user, spec.partition, dict(spec.extra)) == ("ann", "cpu", {"constraint": "fast"})
    assert spec.session_folder == f"/home/ann/.carme/sessions/{spec.name.removeprefix('carme-')}"
    assert json.loads(spec.data)["path"].startswith("/srv/folders/")
    assert await slurm.run(dataset(tmp_path)) == 0
    found = await site.done("ann", "GET", "folders/genomes/verification")
    counts = {name: found[name] for name in ("files", "verified", "differs", "missing", "outside", "bad_lines")}
    assert counts == {"files": 8, "verified": 3, "differs": 1, "missing": 2, "outside": 2, "bad_lines": 1}
    assert found["unlisted"] == 2, "a file, and a link to one"
    assert found["names"] == {"differs": ["changed"], "missing": ["gone", "b"], "outside": ["../secret", "link"]}
    day = time.strftime("%Y-%m-%d", time.gmtime())
    said = f"verified {day}: of 8 files 1 differs, 2 are missing, 2 lead out of the folder"
    assert found["said"] == f"{said}; 1 line is no checksum; 2 files are not in the list"
    assert (found["complete"], found["by"], found["job"]["state"]) == (True, "ann", "done")
    assert (await site.done("ann", "GET", "folders/genomes/events"))["events"][0]["act"] == "verified"
    page = await site.page("ann", "folder/genomes")
    assert said in page
    assert "changed (differs)" in page
    await site.done("ann", "PATCH", "folders/genomes", {"checksums": "OTHER"})
    assert (await site.done("ann", "GET", "folders/genomes"))["verified"] == ""


async def test_a_folder_is_measured(site: Site, slurm: SlurmThatRunsWhenTold, tmp_path: Path) -> None:
    data = dataset(tmp_path)
    (data / "inner" / "large").write_bytes(os.urandom(300_000))
    before = await site.done("ann", "GET", "folders/genomes/disk")
    assert (before["measured"], before["folders"], before["job"]) == (0, [], None)
    await site.done("ann", "POST", "folders/genomes/measure")
    assert await slurm.run(data) == 0
    found = await site.done("ann", "GET", "folders/genomes/disk")
    [largest] = found["folders"]
    assert (largest["path"], largest["files"]) == ("inner", 2)
    assert largest["bytes"] >= 300_000
    place = found["places"][0]
    assert (place["path"], place["shared"], place["files"]) == ("/shared/genomes", False, 8)
    page = await site.page("ann", "folder/genomes")
    assert "The largest folders in it" in page
    assert "in 2 files" in page


async def test_a_job_says_how_far_it_is_and_only_by_its_own_nonce(site: Site, slurm: SlurmThatRunsWhenTold) -> None:
    await site.done("ann", "POST", "folders/genomes/measure")
    report = json.loads(slurm.specs[0].data)["report"]
    path = report["url"].removeprefix(site.url)

    async def send(body: dict[str, Any], nonce: str = "") -> int:
        given = {"Authorization": f"carme-nonce {nonce or report['nonce']}", "Content-Type": "application/json"}
        return (await site.ask("POST", path, json.dumps(body).encode(), **given)).code

    counts = {"state": "running", "files": 5, "total_files": 10, "bytes": 1 << 20, "total_bytes": 2 << 20}
    assert await send(counts) == 204
    job = (await site.done("ann", "GET", "folders/genomes/disk"))["job"]
    assert (job["state"], job["said"]) == ("running", "runs: 5 of 10 files, 1.0 MiB of 2.0 MiB")
    assert "runs: 5 of 10 files" in await site.page("ann", "folder/genomes")
    assert await send(counts, "wrong") == 403
    assert (await site.ask("POST", path, b"{}", Authorization="token root")).code == 403
    result = {"root": "/x", "bytes": 5, "files": 1, "complete": True, "folders": []}
    for bad in ({"state": "done"}, {**counts, "files": -1}, {"state": "done", "result": {**result, "more": 1}}):
        assert await send(bad) == 422
    assert await send({"state": "done", "result": result}) == 204
    assert await send({"state": "failed", "problem": "later"}) == 204
    assert (await site.done("ann", "GET", "folders/genomes/disk"))["job"]["state"] == "done", "the first end counts"


@pytest.mark.parametrize(
    ("who", "act", "status", "said"),
    [
        ("ben", "measure", 404, ""),
        ("ann", "verify", 409, "Name the file of checksums"),
        ("root", "measure", 409, "The job runs as root, who cannot read the folder."),
        ("reader", "measure", 403, ""),
    ],
)
async def test_who_may_not_or_would_find_nothing_is_refused(
    site: Site, slurm: SlurmThatRunsWhenTold, who: str, act: str, status: int, said: str
) -> None:
    found, answer = await site.rest(who, "POST", f"folders/genomes/{act}")
    assert (found, said in answer["message"], slurm.specs) == (status, True, [])


async def test_a_member_sees_what_is_found_and_starts_nothing(
    site: Site, slurm: SlurmThatRunsWhenTold, tmp_path: Path
) -> None:
    await site.done("ann", "PATCH", "folders/genomes", {"checksums": "SHA256SUMS"})
    await site.done("ann", "POST", "folders/genomes/members", {"kind": "user", "subject": "ben", "role": "ro"})
    await site.done("ann", "POST", "folders/genomes/verify")
    await slurm.run(dataset(tmp_path))
    assert (await site.done("ben", "GET", "folders/genomes/verification"))["names"] == {}, "invited, not yet a member"
    await site.done("ben", "POST", "folders/genomes/answer", {"accepted": True})
    assert (await site.done("ben", "GET", "folders/genomes/verification"))["names"]["differs"] == ["changed"]
    assert (await site.rest("ben", "POST", "folders/genomes/verify"))[0] == 403
    assert "by a job" not in await site.page("ben", "folder/genomes")


async def test_one_job_at_a_time_by_the_page_as_well(site: Site, slurm: SlurmThatRunsWhenTold) -> None:
    status, page = await site.form("ann", "folder/genomes/measure")
    assert (status, "waits in Slurm&#39;s queue as job 41" in page) == (303, True)
    status, refused = await site.rest("ann", "POST", "folders/genomes/measure")
    assert (status, refused["error"]) == (409, "busy")
    assert len(slurm.specs) == 1


async def test_what_slurm_refuses_is_told(site: Site, slurm: SlurmThatRunsWhenTold) -> None:
    slurm.refuses = "Invalid account"
    status, answer = await site.rest("ann", "POST", "folders/genomes/measure")
    assert (status, "Slurm does not take the job: Invalid account" in answer["message"]) == (409, True)
    assert (await site.done("ann", "GET", "folders/genomes/disk"))["job"]["state"] == "failed"
    slurm.refuses = ""
    await site.done("ann", "POST", "folders/genomes/measure")


@pytest.mark.parametrize(
    ("code", "said"), [(0, "Job 41 has ended (TIMEOUT) without a result."), (74, "its node did not reach http://127")]
)
async def test_a_job_that_ends_without_a_word_is_found_out(
    site: Site, slurm: SlurmThatRunsWhenTold, code: int, said: str
) -> None:
    jobs = site.service.jobs
    await site.done("ann", "POST", "folders/genomes/measure")
    jobs._clock = lambda: time.time() + 3600
    await jobs.look()
    assert (await site.done("ann", "GET", "folders/genomes/disk"))["job"]["state"] == "waiting", "it is in the queue"
    slurm.silent = True
    slurm.end("TIMEOUT", code, end=time.time())
    await jobs.look()
    assert (await site.done("ann", "GET", "folders/genomes/disk"))["job"]["state"] == "waiting", (
        "silence proves nothing"
    )
    slurm.silent = False
    await jobs.look()
    job = (await site.done("ann", "GET", "folders/genomes/disk"))["job"]
    assert (job["state"], said in job["problem"]) == ("failed", True)


async def test_a_lost_answer_is_looked_up_and_a_job_that_never_was_is_given_up(
    site: Site, slurm: SlurmThatRunsWhenTold
) -> None:
    jobs, now = site.service.jobs, time.time()
    slurm.loses_answer = True
    assert (await site.done("ann", "POST", "folders/genomes/measure"))["state"] == "asked"
    jobs._clock = lambda: now + 120
    await jobs.look()
    job = (await site.done("ann", "GET", "folders/genomes/disk"))["job"]
    assert (job["state"], job["job"]) == ("waiting", 41)
    slurm.jobs.clear()
    await jobs.look()
    assert (await site.done("ann", "GET", "folders/genomes/disk"))["job"]["state"] == "waiting"
    jobs._clock = lambda: now + 3600
    await jobs.look()
    job = (await site.done("ann", "GET", "folders/genomes/disk"))["job"]
    assert (job["state"], job["problem"]) == ("failed", "Slurm knows no such job. Start it again.")


async def test_folders_are_measured_by_themselves_where_the_site_wants_it(
    site: Site, slurm: SlurmThatRunsWhenTold
) -> None:
    jobs, now = site.service.jobs, time.time()
    await jobs.look()
    assert slurm.specs == []
    site.service.settings.measure_days = 7.0
    await site.done("ann", "POST", "folders", {"name": "of-physics", "account": "physics"})
    await jobs.look()
    assert [spec.user for spec in slurm.specs] == ["ann", "ann"]
    await jobs.look()
    jobs._clock = lambda: now + 8 * 86_400
    await jobs.look()
    assert len(slurm.specs) == 2, "those have not ended"


async def test_a_job_that_cannot_read_the_folder_says_so(
    site: Site, slurm: SlurmThatRunsWhenTold, tmp_path: Path
) -> None:
    await site.done("ann", "PATCH", "folders/genomes", {"checksums": "SHA256SUMS"})
    await site.done("ann", "POST", "folders/genomes/verify")
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "SHA256SUMS")
    assert await slurm.run(tmp_path / "data") == 0
    job = (await site.done("ann", "GET", "folders/genomes/verification"))["job"]
    assert (job["state"], job["problem"]) == ("failed", "no regular file")


async def test_the_address_of_reports_is_the_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, url="https://lab.org/services/folders") as found:
        assert found.service.jobs._address == "https://lab.org/services/folders/"
    async with running(tmp_path, monkeypatch) as found:
        assert found.service.jobs._address == f"http://127.0.0.1:8000{PREFIX}"
