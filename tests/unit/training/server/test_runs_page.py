"""The page Runs gets its rows and curves, and does what its buttons ask for; what anybody else sends is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.launch import new_run
from carme_hub.training.launch.new_run import create
from carme_hub.training.records import table
from carme_hub.training.records.marks import read_marks
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import NoRun, Run, all_runs
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.server.runs_page import PAGE, RunsPage


@pytest.fixture(autouse=True)
def session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    monkeypatch.setattr(new_run, "launch", lambda run: None)


def ended(name: str, steps: int = 3, **words: Any) -> Run:
    run = create(RunOptions(2, name=name), **(words or {"cell": "pass"}))
    write_json(run.folder / "state.json", run.state() | {"state": "finished", "ended": run.state()["began"] + 9})
    lines = [json.dumps({"step": step, "at": 1.0, "loss": 1 / step}) for step in range(1, steps + 1)]
    (run.folder / "scalars.jsonl").write_text("\n".join([*lines, '{"step": 9']))
    return run


def test_a_row_has_what_the_table_shows(home: Path) -> None:
    (home / "train.py").write_text("pass")
    ended("old", script="train.py", args=["--lr", "a b"])
    new = create(RunOptions(4, name="new"), cell="pass")
    page = RunsPage()
    first, second = page.rows()["runs"]
    assert (first["id"], first["state"], first["ended"]) == ("new", "starting", False)
    assert second["scalars"]["loss"] == pytest.approx(1 / 3)
    assert (second["id"], second["label"], second["took"], second["ranks"]) == ("old", "Finished", 9.0, 2)
    assert (second["scalars"], second["args"]) == ({"loss": pytest.approx(1 / 3)}, "--lr 'a b'")
    assert (second["star"], second["tags"], second["repeatable"]) == (False, [], True)
    page.do("old", {"ask": "mark", "star": True, "tag": ["a"], "note": "x"})
    row = page.rows()["runs"][1]
    assert (row["star"], row["tags"], row["note"]) == (True, ["a"], "x")
    json.dumps(page.rows())
    # A run that is half deleted hides no other.
    (new.folder / "state.json").write_text("{")
    assert [row["id"] for row in page.rows()["runs"]] == ["old"]


def test_what_has_ended_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended("one")
    page, read = RunsPage(), table.last_scalars
    calls: list[Run] = []
    monkeypatch.setattr(table, "last_scalars", lambda run: calls.append(run) or read(run))  # type: ignore[func-returns-value]
    for _ in range(3):
        page.rows()
    assert len(calls) == 1


def test_runs_side_by_side_have_curves_and_differences() -> None:
    one, two = ended("one"), ended("two", 4, cell="print(2)")
    page = RunsPage()
    found = page.comparison(["one", "two"])
    assert found["runs"] == ["one", "two"]
    assert found["curves"]["one"]["loss"] == [[1.0, 1.0], [2.0, 0.5], [3.0, pytest.approx(1 / 3)]]
    assert ["Result", "loss", ["0.333333", "0.25"]] in found["rows"]
    assert "+print(2)" in found["difference"]
    alone = page.comparison(["two"])
    assert (alone["code"], alone["folder"]) == ("print(2)", str(two.folder))
    assert ["Result", "State", ["Finished"]] in alone["rows"]
    assert ["Result", "State", ["Finished"] * 2] in page.comparison(["one", "two"], everything=True)["rows"]
    assert one.folder.exists()
    with pytest.raises(NoRun):
        page.comparison(["one", "none"])
    for ids in ([], ["one"] * 9):
        with pytest.raises(ValueError, match="Compare from 1 to 8 runs"):
            page.comparison(ids)


def test_what_ranks_used_is_by_rank_or_of_several_runs_by_run() -> None:
    one, two = ended("one"), ended("two")
    for run, ranks in ((one, 2), (two, 1)):
        (run.folder / "usage").mkdir()
        for rank in range(ranks):
            lines = [{"seconds": at, "cpu": 100.0, "memory": 1024 * (rank + 1), "gpu_memory": 512} for at in (10, 20)]
            (run.folder / f"usage/rank-{rank}.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"sec')
    page = RunsPage()
    alone = page.comparison(["one"])
    assert list(alone["use"]) == ["rank 0", "rank 1"]
    assert alone["use"]["rank 1"] == {
        "CPU (%)": [[10.0, 100.0], [20.0, 100.0]],
        "Memory (GiB)": [[10.0, 2.0], [20.0, 2.0]],
        "GPU memory (GiB)": [[10.0, 0.5], [20.0, 0.5]],
    }
    assert alone["modules"] == []
    both = page.comparison(["one", "two"])
    assert list(both["use"]) == ["one", "two"]
    (one.folder / "profile").mkdir()
    memory = {"modules": [{"name": "layer (Linear)", "added_gib": 0.5, "most_gib": 2.0}]}
    (one.folder / "profile/rank-0.json").write_text(json.dumps({"memory": memory}))
    assert page.comparison(["one"])["modules"] == [["layer (Linear)", 0.5, 2.0]]


def test_a_long_curve_keeps_its_peaks() -> None:
    points = [[float(n), 5.0 if n == 4321 else -3.0 if n == 777 else n / 10_000] for n in range(10_000)]
    found = table.thinned(points)
    assert len(found) <= table.MAX_POINTS
    assert found == sorted(found)
    assert [4321.0, 5.0] in found
    assert [777.0, -3.0] in found
    assert table.thinned(points[:400]) == points[:400]


def test_a_loss_that_is_no_number_hides_no_run() -> None:
    run = ended("one")
    (run.folder / "scalars.jsonl").write_text('{"step": 1, "at": 1, "loss": 1}\n{"step": 2, "at": 2, "loss": NaN}\n')
    ended("two")
    page = RunsPage()
    rows = page.rows()
    assert rows["runs"][1]["scalars"] == {"loss": "nan"}
    found = page.comparison(["one", "two"])
    assert found["curves"]["one"] == {"loss": [[1.0, 1.0]]}
    for answer in (rows, found):
        json.dumps(answer, allow_nan=False)


def test_gpus_are_requested_only_after_their_price_was_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from carme_hub.training.launch import price

    ended("one")
    monkeypatch.setattr(price, "price_of", lambda options: "Costs up to 3 GPU-hours.")
    monkeypatch.setattr("carme_hub.training.launch.start.price_of", lambda options: "Costs up to 3 GPU-hours.")
    page = RunsPage()
    assert page.do("one", {"ask": "repeat"}) == {"message": "Costs up to 3 GPU-hours.", "confirm": True}
    assert len(all_runs()) == 1
    answer = page.do("one", {"ask": "repeat", "confirm": True})
    assert answer == {"message": "one-2 is started. Costs up to 3 GPU-hours.", "run": "one-2"}


def test_deleting_is_undone() -> None:
    ended("one")
    page = RunsPage()
    answer = page.do("one", {"ask": "delete"})
    assert answer["message"] == "one is deleted."
    assert page.rows() == {"runs": []}
    assert page.do(answer["undo"], {"ask": "restore"}) == {"message": "one is restored."}
    assert [row["id"] for row in page.rows()["runs"]] == ["one"]
    with pytest.raises(NoRun):
        page.do("none", {"ask": "delete"})
    with pytest.raises(ValueError, match="There is no deleted run"):
        page.do("../one", {"ask": "restore"})


def test_a_run_is_repeated_with_changes(home: Path) -> None:
    (home / "train.py").write_text("pass")
    ended("one", script="train.py", args=["1"])
    page = RunsPage()
    answer = page.do("one", {"ask": "repeat", "options": "-n 3 --time 10m", "args": "2 'a b'"})
    assert answer == {"message": "one-2 is started.", "run": "one-2"}
    request = Run.by_id("one-2").request()
    assert (request["given"]["ranks"], request["given"]["seconds"], request["args"]) == (3, 600, ["2", "a b"])
    assert request["given"]["detach"]
    assert page.do("one", {"ask": "repeat"})["run"] == "one-3"
    assert Run.by_id("one-3").request()["args"] == ["1"]
    (home / "train.py").write_text("print()")
    with pytest.raises(ValueError, match="has changed since one"):
        page.do("one", {"ask": "repeat"})
    assert page.do("one", {"ask": "repeat", "changed_code": True})["run"] == "one-4"
    refused = (
        ("train.py", "is no option"),
        ("-n x", "invalid int"),
        ("'", "quotation"),
        ("--dry-run", "in a terminal"),
    )
    for words, said in refused:
        with pytest.raises(ValueError, match=said):
            page.do("one", {"ask": "repeat", "options": words})
    assert len(all_runs()) == 4


def test_a_run_that_returns_variables_is_repeated_in_a_notebook() -> None:
    create(RunOptions(1, name="one", pull=("x",)), cell="x = 1")
    with pytest.raises(ValueError, match=r"distributed\.repeat\('one'\)"):
        RunsPage().do("one", {"ask": "repeat"})


@pytest.mark.parametrize(
    "words",
    [{"star": 1}, {"note": ["x"]}, {"tag": "a"}, {"untag": [1]}, {"tag": ["a b"]}, {"note": "x" * 3000}],
)
def test_marks_that_are_none_change_nothing(words: dict[str, Any]) -> None:
    run = ended("one")
    with pytest.raises(ValueError, match=r"."):
        RunsPage().do("one", {"ask": "mark", **words})
    assert read_marks(run).tags == ()


def test_the_page_has_no_script_of_its_own() -> None:
    assert PAGE.count("<script") == 1
    assert 'src="{static}/runs.js"' in PAGE


def test_the_profile_of_each_rank_can_be_had() -> None:
    run, page = ended("profiled"), RunsPage()
    assert page.comparison(["profiled"])["profiles"] == []
    (run.folder / "profile").mkdir()
    for name in ("rank-1.json.gz", "rank-10.json.gz", "rank-2.json.gz", "rank-0.json", "rank-x.json.gz"):
        (run.folder / "profile" / name).write_bytes(b"events")
    assert page.comparison(["profiled"])["profiles"] == [1, 2, 10]
    assert page.profile("profiled", 10).read_bytes() == b"events"
    for id, rank in (("profiled", 0), ("none", 1), ("../profiled", 1)):
        with pytest.raises(NoRun):
            page.profile(id, rank)
