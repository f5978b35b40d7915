"""Jobs that have ended are one list: advice of the activity service takes the place of what accounting alone says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forged_jobs import RECORD
from home_page_parts import page, user

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.cluster.own_jobs.ended import EndedJob
from carme_hub.spawners.jobs.ended import MOST_ROWS, as_json, ended_row, ended_rows

NOW, DAY = 4000.0, 86_400
ID = "5f0d8f0e-0000-4000-8000-000000000001"


def stored(record: EndedJob = RECORD, **changes: Any) -> FinishedJob:
    """Return a job of accounting as the activity service has stored it."""
    times = record.submitted, record.start, record.end
    asked, used = Asked(0, 4, 16_384, 120), Used(cpus=3.5, memory=2000, measured=1.0)
    found = FinishedJob(record.id, "alice", "lab", "gpu", record.state, *times, asked, used, name=record.name)
    return replace(found, **changes)


def shown(rows: Any) -> str:
    text = page(ended_jobs=rows, user=user(), submits_again=True)
    return " ".join(text.split())


def test_advice_takes_the_place_of_the_plain_text_and_the_row_stays() -> None:
    plain = ended_row([RECORD], NOW)
    [row], left = ended_rows([[RECORD]], [stored()], NOW)
    assert row.used == "Memory: 2.0 GiB of 16 GiB at most. CPUs: 3.5 of 4 on average. Time: 1 h of 2 h."
    assert row.suggestion == "Ask for 3 GiB of memory: what it used at most, and a quarter more."
    assert replace(row, used=plain.used, suggestion=plain.suggestion) == plain
    assert (row.log, left) == (True, 0)
    text = shown([row])
    assert text.count("past.sh</span>") == 1
    assert 'href="/hub/carme/jobs/again?job=20"' in text
    assert 'href="/hub/carme/jobs/output?job=20"' in text


def test_it_looks_at_the_jobs_before_and_is_silent_where_they_say_so() -> None:
    more = stored(used=Used(cpus=3.5, memory=12_000, measured=1.0), job_id=19, ended=RECORD.end - 60)
    [row], _ = ended_rows([[RECORD]], [stored(), more], NOW)
    assert row.suggestion == "", "another job of the kind has used most of the memory"


def test_other_jobs_and_earlier_ones_of_the_same_number_have_the_plain_text() -> None:
    plain = ended_row([RECORD], NOW)
    others = [stored(job_id=21), stored(submitted=RECORD.submitted - 3000)]
    assert ended_rows([[RECORD]], others, NOW)[0] == [plain]
    assert ended_rows([[RECORD]], [], NOW) == ([plain], 0)


def test_what_there_is_too_little_of_is_said_once() -> None:
    for state, said in (("OUT_OF_MEMORY", "It ran out of memory"), ("TIMEOUT", "Slurm ended it at its time limit")):
        record = replace(RECORD, state=state)
        [row], _ = ended_rows([[record]], [stored(record)], NOW)
        assert (row.said, row.suggestion.startswith(said)) == ("", True)
        assert ended_row([record], NOW).said != ""


def test_gpus_of_the_sandbox_are_called_virtual() -> None:
    [row], _ = ended_rows([[RECORD]], [stored(asked=Asked(1, 4, 16_384, 120))], NOW, virtual=True)
    assert row.used.startswith("How busy its 1 virtual GPU was is not known: Slurm's accounting does not say.")


def test_advice_on_an_array_names_its_task() -> None:
    tasks = [replace(RECORD, id=30 + n, array=30, task=str(n), end=RECORD.end + n) for n in range(3)]
    [row], _ = ended_rows([tasks], [stored(tasks[-1])], NOW)
    assert (row.id, row.counts) == ("30", "3 completed")
    assert row.used.startswith("Task 2: Memory: 2.0 GiB of 16 GiB")


def test_batch_jobs_of_the_hub_are_in_the_list_and_sessions_and_old_ones_are_not() -> None:
    batch = stored(job_id=40, session=ID, name="night", asked=Asked(2, 4, 16_384, 120), gpu_type="a100", ended=3900.0)
    failed = replace(batch, job_id=41, state="FAILED", exit_code=3, ended=3500.0)
    session, old = replace(batch, interactive=True), replace(batch, ended=NOW - 3 * DAY - 1)
    rows, _ = ended_rows([[RECORD]], [batch, failed, session, old, stored()], NOW)
    assert [(row.id, row.what, row.said) for row in rows] == [
        ("40", "Batch job night", ""),
        ("20", "past.sh", ""),
        ("41", "Batch job night", "Its exit code is 3."),
    ]
    assert (rows[0].gpus, rows[0].ours, rows[0].log) == ("2 × a100", True, False)
    text = shown(rows)
    assert "job=40" not in text, "it has a list of its own"
    assert 'href="/hub/carme/jobs/again?job=20"' in text


def test_only_the_newest_are_listed_and_the_others_counted() -> None:
    groups = [[replace(RECORD, id=50 + n, end=RECORD.end - n)] for n in range(MOST_ROWS)]
    batch = stored(job_id=40, session=ID, name="night", ended=3900.0)
    rows, left = ended_rows(groups, [batch], NOW)
    assert ([row.id for row in rows][:2], len(rows), left) == (["40", "50"], MOST_ROWS, 1)


def test_the_page_escapes_names_of_jobs() -> None:
    rows, _ = ended_rows([[replace(RECORD, name="<b>")]], [stored(job_id=40, session=ID, name="<i>")], NOW)
    text = shown(rows)
    assert "<b>" not in text
    assert "<i>" not in text
    assert "carme-ended-jobs" not in shown([])


def test_programs_read_the_advice_of_what_is_stored() -> None:
    row, found = ended_row([RECORD], NOW, [stored()]), as_json(RECORD, [stored()])
    assert (found["used"], found["suggestion"]) == (row.used, row.suggestion)
    assert row.suggestion
    assert as_json(RECORD)["suggestion"] != row.suggestion
