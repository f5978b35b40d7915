"""A benchmark from its call to its files, with real ranks on this machine and a training whose clock is forged."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conducted_here import launched_here

from carme_hub.training.command import main
from carme_hub.training.launch import new_run
from carme_hub.training.run import run_folder
from carme_hub.training.run.failures import CannotRun, RankFailed
from carme_hub.training.run.run_folder import Run
from carme_hub.training.scaling import benchmark as scaling
from carme_hub.training.scaling.trial import NotMeasured, Plan, Trial, measure_script

#: A training that needs 2 ms for each sample, twice as long together with others, and no other rank. It is timed by
#: a forged clock, which goes on where it would work: a busy machine would make it as slow as it likes.
SCRIPT = """
import sys
from pathlib import Path
from carme_hub.training.scaling import trial as scaling_trial
class ForgedClock:
    now = 0.0
    def perf_counter(self):
        return self.now
    def sleep(self, seconds):
        self.now += seconds
time = scaling_trial.time = ForgedClock()
def train(trial):
    trial.epoch = 1000
    for step in trial:
        with step.loading():
            time.sleep(0.001)
        seconds = 0.002 * trial.batch
        time.sleep(seconds if step.alone or trial.size == 1 else 2 * seconds)
def short(trial):
    next(iter(trial))
def bad(trial):
    for step in trial:
        if trial.size > 1 and trial.rank == 1:
            raise ValueError("bad data")
        time.sleep(0.001)
def plain(trial):
    for step in trial:
        time.sleep(0.001)
def words(trial):
    Path(sys.argv[1]).touch()
    plain(trial)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The training as a file, in a home of its own, where runs are conducted on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CARME_IMAGE", "training:2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")  # a job of one node, without GPUs
    monkeypatch.delenv("CARME_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    with launched_here(monkeypatch, nodes=1):
        yield str(tmp_path / "train.py")


def benchmark(
    script: str, ranks: tuple[int, ...] = (1, 2), batch: tuple[int, ...] = (4,), **more: object
) -> scaling.Report:
    settings: dict[str, object] = {"repeats": 1, "steps": 2, "blocks": 2, "warmup": 1, **more}
    return scaling.benchmark(script, ranks, batch, **settings)  # type: ignore[arg-type]


def test_a_script_is_measured_and_its_curve_kept(
    script: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = benchmark(script, batch=(4, 8), repeats=2)
    curve = report.curve
    assert [(run.repeat, run.ranks) for run in curve.runs if run.batch == 4] == [(0, 1), (0, 2), (1, 2), (1, 1)]
    assert (curve.device, curve.epoch, curve.script, curve.image) == ("cpu", 1000, "train.py", "training:2")
    for batch in (4, 8):
        one, two = curve.points(batch)
        assert one.rate.mean == pytest.approx(batch / (0.001 + 0.002 * batch), rel=1e-6)
        assert one.quiet is not None
        assert one.quiet.mean == pytest.approx(1)
        assert two.communication is not None
        work = 0.002 * batch
        assert two.communication.mean == pytest.approx(work / (0.001 + 2 * work))
        assert two.loading.mean == pytest.approx(0.001 / (0.001 + 2 * work))
    assert report.kept == tmp_path / ".carme" / "scaling" / "training-2--train.py.json"
    assert report.kept.stat().st_mode & 0o777 == 0o600
    assert scaling.load(report.kept).curve == curve
    said = capsys.readouterr().out
    assert "repeat 2 of 2, 2 ranks: samples a second at batch 4" in said
    assert not list((tmp_path / ".carme" / "runs").iterdir()), "runs that went well are not kept"


def test_a_function_is_measured(script: str) -> None:
    def train(trial: Trial) -> None:
        from types import SimpleNamespace

        from carme_hub.training.scaling import trial as scaling_trial

        clock = SimpleNamespace(now=0.0)
        scaling_trial.time = SimpleNamespace(perf_counter=lambda: clock.now)  # type: ignore[assignment]
        for step in trial:
            clock.now += 0.002 if step.alone else 0.004

    report = scaling.benchmark(train, [2], 4, repeats=1, steps=2, blocks=1, warmup=0)
    assert report.curve.runs[0].quiet == pytest.approx(0.5)
    assert report.curve.script == "train"


def test_a_strong_measurement_shares_the_batch_out(script: str) -> None:
    report = benchmark(script, (1, 3), (4,), mode="strong")
    assert [run.each for run in report.curve.runs] == [4, pytest.approx(4 / 3)]
    # three ranks have 2, 1 and 1 samples, twice as long each: as fast as the one with 2 is
    assert report.curve.points()[1].rate.mean == pytest.approx(4 / (0.001 + 0.004 * 2))


def test_a_number_of_ranks_that_fails_is_said_and_the_others_are_kept(
    script: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = benchmark(script, (1, 2), function="bad", repeats=2)
    assert [run.ranks for run in report.curve.runs] == [1, 1]
    [failure] = report.curve.failures
    assert "2 ranks: not measured" in failure
    assert "bad data" in failure
    assert failure in repr(report)
    assert len(list((tmp_path / ".carme" / "runs").iterdir())) == 1, "what failed can be looked at, and was tried once"


def test_what_the_hub_refuses_takes_nothing_from_what_was_measured(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = new_run.launch

    def launch_small(run: Run) -> None:
        if run.request()["asked"]["ranks"] > 1:
            raise run_folder.NoRun("Your account has nothing left.")
        launch(run)

    monkeypatch.setattr(new_run, "launch", launch_small)
    report = benchmark(script)
    assert report.curve.failures == ("2 ranks: not measured. Your account has nothing left.",)
    with pytest.raises(CannotRun, match="nothing left"):
        benchmark(script, (2,))


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["scaling", "run", "-o", "curve.pdf", script]) == 2
    assert "curve.pdf: a curve can be written as" in capsys.readouterr().err
    monkeypatch.setattr(scaling, "find_spec", lambda _name: None)
    for picture in ("curve.png", "curve.svg"):
        assert main(["scaling", "run", "-o", picture, script]) == 2
        assert "needs matplotlib" in capsys.readouterr().err
    assert not run_folder.root().exists()


def test_where_nothing_could_be_measured_the_first_error_is_raised(script: str) -> None:
    with pytest.raises(RankFailed, match="ended before its trial"):
        benchmark(script, (1,), function="short")
    with pytest.raises(RankFailed, match=r"no function nothing\(trial\)"):
        benchmark(script, (1,), function="nothing")


def test_a_training_that_is_never_alone_is_not_taken_for_one_without_communication(script: str) -> None:
    report = benchmark(script, (1, 2), function="plain")
    assert {run.communication for run in report.curve.runs} == {None}
    assert repr(report).count("was not measured: the training has no steps alone") == 1


def test_one_more_run_is_profiled_and_kept(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # No torch is imported here, so what it writes is forged; tests/cluster profiles real steps.
    seen: list[tuple[str, object, int]] = []

    def forged(run: Run, rank: int) -> dict[str, object]:
        seen.append((run.id, run.request()["asked"]["profile"], rank))
        return {"loading": 0.5, "communication": 0.1, "small": None, "busy": None, "copying": None}

    monkeypatch.setattr(scaling, "read_profile", forged)
    report = benchmark(script, (1, 2), (4, 8), profile=True, function="plain")
    [(run, steps, first), (_, _, second)] = seen
    assert (steps, first, second) == ([3, 4], 0, 1)
    assert report.curve.profiled is not None
    assert (report.curve.profiled.ranks, report.curve.profiled.batch, report.curve.profiled.run) == (2, 8, run)
    assert report.curve.notes == ()
    assert f"run {run}" in repr(report)
    assert "--profile needs torch" in (run_folder.root() / run / "rank-0.log").read_text()
    assert [folder.name for folder in run_folder.root().iterdir()] == [run], "it can be looked at"


def test_a_training_that_cannot_be_profiled_keeps_its_curve(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = benchmark(script, (1, 2), profile=True)
    assert report.curve.profiled is None
    assert report.curve.notes == ("It was not profiled: the training uses no torch.",)
    assert len(report.curve.runs) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"mode": "medium"}, "strong or weak"),
        ({"batch": ()}, "one or more sizes"),
        ({"batch": (0,)}, "at least one sample"),
        ({"ranks": ()}, "one or more numbers"),
        ({"ranks": (0,)}, "from 1 to"),
        ({"ranks": (8,), "mode": "strong"}, "cannot be divided among 8 ranks"),
        ({"repeats": 0}, "at least one"),
        ({"steps": 0}, "must be at least one"),
        ({"backend": "smoke"}, "choose one of horovod"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(script: str, more: dict[str, object], said: str) -> None:
    with pytest.raises(CannotRun, match=said):
        benchmark(script, **more)  # type: ignore[arg-type]
    assert not run_folder.root().exists()


def test_a_benchmark_that_is_stopped_keeps_what_it_has(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = new_run.launch

    def launch_once(run: Run) -> None:
        if "2x1" in run.id:
            raise KeyboardInterrupt
        launch(run)

    monkeypatch.setattr(new_run, "launch", launch_once)
    with pytest.raises(KeyboardInterrupt):
        benchmark(script)
    [path] = scaling.saved_curves()
    assert scaling.load(path).curve.notes == ("Stopped before the end.",)
    assert str(path) in capsys.readouterr().out


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_measures_and_reports(
    script: str, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    options = ["--ranks", "1-2", "--batch", "4", "--repeats", "1", "--steps", "2", "--blocks", "1", "--warmup", "0"]
    mark = tmp_path / "mark"
    measure = ["scaling", "run", *options, "--function", "words", "-o", "curve.svg", script, str(mark)]
    assert main(measure) == 0
    assert mark.exists()
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")
    capsysbinary.readouterr()
    assert main(["scaling", "report"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"training-2--train.py: ")
    assert main(["scaling", "report", "train.py", "--format", "csv"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"script,image,")
    assert main(["scaling", "report", "train.py", "--format", "json"]) == 0
    assert len(json.loads(capsysbinary.readouterr().out)["runs"]) == 2


def test_the_command_says_what_there_is_not(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "report"]) == 2
    assert "There is no curve yet" in capsys.readouterr().err
    assert main(["scaling", "run", "nothing.py"]) == 2
    assert "no script nothing.py" in capsys.readouterr().err


def test_one_curve_that_is_damaged_does_not_hide_the_others(
    script: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    benchmark(script)
    kept = tmp_path / ".carme" / "scaling"
    good = json.loads((kept / "training-2--train.py.json").read_text())
    (kept / "half.json").write_text(json.dumps(good)[:100])
    (kept / "later.json").write_text(json.dumps({**good, "version": 99}))
    (kept / "words.json").write_text(json.dumps({**good, "runs": [{**run, "rate": "much"} for run in good["runs"]]}))
    capsys.readouterr()
    assert main(["scaling", "report"]) == 0
    out = capsys.readouterr().out
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert set(lines) == {"half", "later", "words", "training-2--train.py"}
    assert all(lines[name].startswith("not read. ") for name in ("half", "later", "words"))
    assert "not a scaling curve of version 1" in lines["later"]
    assert not lines["training-2--train.py"].startswith("not read")
    assert main(["scaling", "report", "later"]) == 2


# -- the trial by itself ----------------------------------------------------------------------------------------------


def trial_of(plan: Plan, body: Callable[[Trial], None]) -> Trial:
    trial = Trial(plan, 8)
    body(trial)
    return trial


def test_blocks_take_turns_in_both_orders() -> None:
    seen: list[bool] = []
    plan = Plan((8,), steps=2, blocks=2, warmup=1)
    trial_of(plan, lambda trial: seen.extend(step.alone for step in trial))
    assert seen == [False, True, *[False] * 2, *[True] * 2, *[True] * 2, *[False] * 2]


def test_a_trial_counts_samples_and_loading() -> None:
    def body(trial: Trial) -> None:
        for step in trial:
            with step.loading():
                time.sleep(0.01)
            assert step.alone in (True, False)

    part = trial_of(Plan((8,), steps=3, blocks=2), body).part("n1")
    assert [block.samples for block in part.together] == [24, 24]
    assert all(0.03 <= block.loading <= block.seconds for block in (*part.together, *part.alone))


def test_a_quiet_step_of_a_torch_model_has_no_exchange() -> None:
    class Model:
        entered = 0

        def no_sync(self) -> Model:
            return self

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *_: object) -> None: ...

    model = Model()

    def body(trial: Trial) -> None:
        for step in trial:
            with step.quiet(model):
                pass

    part = trial_of(Plan((8,), steps=3, blocks=2, warmup=0), body).part("n1")
    assert model.entered == 6
    assert len(part.alone) == 2


class ModelOfFullyShard:
    """What ``fully_shard`` makes: it has no ``no_sync``."""

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        pytest.fail("gradients are not all that it exchanges")


@pytest.mark.parametrize(("model", "size"), [(ModelOfFullyShard(), 1), (ModelOfFullyShard(), 2), (object(), 2)])
def test_a_model_that_cannot_be_quiet_is_said_at_its_first_step(model: object, size: int) -> None:
    trial = Trial(Plan((8,)), 8, 0, size)
    first = next(iter(trial)).quiet(model)
    assert not trial.now_alone
    with pytest.raises(NotMeasured, match=r"Train a second, plain model where step\.alone is true"):
        first.__enter__()


def test_one_rank_needs_no_ddp_to_be_quiet() -> None:
    def body(trial: Trial) -> None:
        for step in trial:
            with step.quiet(object()):
                pass

    assert len(trial_of(Plan((8,), steps=1, blocks=1), body).part("n1").alone) == 1


def test_a_loop_that_is_left_measures_nothing() -> None:
    def body(trial: Trial) -> None:
        for _ in trial:
            break

    with pytest.raises(NotMeasured, match="one step for each step"):
        trial_of(Plan((8,)), body).part("n1")


def test_a_script_finds_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "beside_the_script.py").write_text("WORDS = ['--its', 'own']\n")
    (tmp_path / "train.py").write_text(
        "import beside_the_script, sys\nassert sys.argv[1:] == beside_the_script.WORDS\n"
    )
    with pytest.raises(NotMeasured, match=r"has no function train\(trial\)"):
        measure_script(str(tmp_path / "train.py"), "train", ["--its", "own"], Plan((8,)))
