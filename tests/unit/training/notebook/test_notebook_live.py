"""A run is shown in place in a notebook, line by line on a terminal, and an interrupt ends it, or the looking on."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from notebook_parts import state

from carme_hub.training.launch.new_run import create
from carme_hub.training.notebook import display, follow
from carme_hub.training.notebook.display_output import DisplayOutput
from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import CATCH_UP_LINES, Notebook, Tail, Terminal
from carme_hub.training.run.description import View, as_text
from carme_hub.training.run.failures import Interrupted
from carme_hub.training.run.messages import DISPLAYED
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions


def test_a_tail_has_the_newest_whole_lines_and_counts_all(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    tail = Tail(str(path), most=3)
    assert list(tail.look()) == []
    path.write_text("a\nb\nc\nd\nhal")
    assert list(tail.look()) == ["b", "c", "d"]
    assert tail.total == 4
    with path.open("a") as file:
        file.write("f\n")
    assert list(tail.look()) == ["c", "d", "half"]
    assert tail.total == 5
    with path.open("a") as file:
        file.write("no end")
    assert list(tail.look(whole=True)) == ["d", "half", "no end"]


def test_of_a_large_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    tail = Tail(str(path), most=2, limit=100)
    assert list(tail.look()) == ["line 9998", "line 9999"]
    assert tail.total == 10_000
    view = View({"state": "running", "ranks": [{"rank": 0}]}, 0, {0: tail}, str(tmp_path))
    assert f"(9,998 earlier lines in {path})\nline 9998\nline 9999" in as_text(view)
    assert f"9,998 earlier lines in <code>{path}</code>" in display.as_html(view)


class ShellThatKeepsWhatIsPublished:
    """The display publisher of an IPython."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool, dict[str, Any]]] = []

    def publish(self, data: dict[str, Any], metadata: Any, *, transient: dict[str, str], update: bool) -> None:
        self.sent.append((transient["display_id"], update, data))


def test_a_notebook_has_one_display_that_changes_in_place() -> None:
    shell = ShellThatKeepsWhatIsPublished()
    shown = Notebook(shell.publish)
    shown.show(View(state(), 1001.0))
    shown.show(View(state(), 1001.0))
    shown.show(View(state(), 1002.0))
    shown.end(View(state(state="finished", ended=1003.0), 1003.0, {0: ["bye"]}))
    assert [update for _, update, _ in shell.sent] == [False, True, True]  # the same again is not sent
    assert len({id for id, _, _ in shell.sent}) == 1
    assert "bye" in shell.sent[-1][2]["text/html"]
    assert "bye" in shell.sent[-1][2]["text/plain"]


def test_a_terminal_prints_each_line_of_rank_0_once() -> None:
    out, said = io.StringIO(), io.StringIO()
    shown = Terminal(out, said)
    shown.show(View(state(), 1001.0, {0: ["a", "b"], 1: ["x"]}))
    shown.show(View(state(), 1001.5, {0: ["a", "b", "c"], 1: ["x"]}))
    shown.end(View(state(state="finished", ended=1042.0), 1042.0, {0: ["a", "b", "c", "d"]}))
    assert out.getvalue() == "a\nb\nc\nd\n"
    assert said.getvalue().splitlines() == [
        "carme: run1: 2 ranks on n1 and n2, 2 GPUs, horovod: running",
        "carme: run1: 2 ranks on n1 and n2, 2 GPUs, horovod: finished, 0:42 in all, 1:24 of GPU time",
    ]


def test_a_terminal_prints_who_is_rank_0_now() -> None:
    out = io.StringIO()
    shown = Terminal(out, io.StringIO())
    shown.show(View(state(), 1001.0, {0: ["epoch 1"], 1: []}))
    first, second = state()["ranks"]
    swapped = state(ranks=[{**first, "state": "failed", "place": -1}, {**second, "place": 0}])
    shown.show(View(swapped, 1002.0, {0: ["epoch 1"], 1: ["epoch 2"]}))
    assert out.getvalue() == "epoch 1\nepoch 2\n"


def test_a_terminal_does_not_begin_anew_when_another_worker_is_rank_0() -> None:
    out = io.StringIO()
    shown = Terminal(out, io.StringIO())
    said = [f"epoch {number}" for number in range(1000)]
    shown.show(View(state(), 1001.0, {0: said, 1: said}))
    first, second = state()["ranks"]
    swapped = state(ranks=[{**first, "state": "failed", "place": -1}, {**second, "place": 0}])
    shown.show(View(swapped, 1002.0, {0: said, 1: [*said, "epoch 1000"]}))
    last = out.getvalue().splitlines()[1000:]
    assert last[-1] == "epoch 1000"
    assert len(last) <= CATCH_UP_LINES + 1, "what rank 0 said for hours is not said again by another"


def test_the_table_of_an_elastic_run_has_the_order_of_its_ranks_and_what_was_lost_last() -> None:
    first, second = state()["ranks"]
    three = [{**first, "rank": 0, "place": -1}, {**first, "rank": 1, "place": 1}, {**second, "rank": 2, "place": 0}]
    lines = as_text(View(state(ranks=three), 1002.0, {})).splitlines()
    assert [line.partition("  ")[0] for line in lines if line[:1].isdigit()] == ["0 (log 2)", "1", "0"]


def test_who_was_rank_0_when_its_code_failed_stays_in_front() -> None:
    first, second = state()["ranks"]
    ranks = [{**first, "place": 1}, {**second, "place": 0, "state": "failed"}]
    view = View(state(state="failed", ranks=ranks), 1002.0, {0: ["a rank"], 1: ["ValueError: bad picture"]})
    assert view.front == 1
    assert "ValueError: bad picture" in as_text(view)


def test_a_terminal_can_print_every_rank_and_loses_none_when_a_tail_is_short(tmp_path: Path) -> None:
    out = io.StringIO()
    shown = Terminal(out, io.StringIO(), all_ranks=True)
    path = tmp_path / "rank-1.log"
    tail = Tail(str(path), most=2)
    for number in range(5):
        with path.open("a") as file:
            file.write(f"{number}\n")
        shown.show(View(state(), 1001.0, {1: tail.look()}))
    assert out.getvalue() == "".join(f"[1] {number}\n" for number in range(5))


# -- following --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(follow, "POLL_INTERVAL", 0.01)
    return create(RunOptions(2), cell="pass")


def put(run: Run, **changes: Any) -> None:
    write_json(run.folder / "state.json", run.state() | changes)


class LiveThatDoes:
    """Shows nothing, and does something each time it is to show."""

    all_ranks, lines = False, None

    def __init__(self, *things: Any) -> None:
        self.things, self.ends, self.last = list(things), 0, ""
        self.displayed: list[DisplayOutput] = []

    def show(self, view: View) -> None:
        if self.things:
            self.things.pop(0)()

    def display(self, output: DisplayOutput) -> None:
        self.displayed.append(output)

    def end(self, view: View) -> None:
        self.ends += 1
        self.last = str(view.state["state"])


def interrupt() -> None:
    raise KeyboardInterrupt


def test_it_is_shown_until_it_has_ended_also_without_a_conductor_here(run: Run) -> None:
    shown = LiveThatDoes(lambda: put(run, state="running"), lambda: put(run, state="finished"))
    assert Follower(run, shown).follow()["state"] == "finished"
    assert shown.things == []
    assert (shown.ends, shown.last) == (1, "finished")


def test_an_interrupt_ends_the_run_and_a_second_one_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def end(how: str) -> None:
        asked.append(how)
        if how == "stop":
            put(run, state="interrupted")

    monkeypatch.setattr(Run, "interrupt", lambda self: end("interrupt"))
    monkeypatch.setattr(Run, "stop", lambda self: end("stop"))
    shown = LiveThatDoes(lambda: None, interrupt, interrupt)
    assert Follower(run, shown).follow()["state"] == "interrupted"
    assert asked == ["interrupt", "stop"]
    assert (shown.ends, shown.last) == (1, "interrupted")


def test_whoever_interrupts_a_third_time_gets_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "interrupt", lambda self: None)
    monkeypatch.setattr(Run, "stop", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        Follower(run, LiveThatDoes(interrupt, interrupt, interrupt)).follow()


@pytest.fixture
def detached(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that was started detached, and that nobody is to end."""
    for name in ("interrupt", "stop"):
        monkeypatch.setattr(Run, name, lambda self, name=name: pytest.fail(f"{name} was asked for"))
    monkeypatch.setattr(Run, "_has_conductor", lambda self, said: True)
    return create(RunOptions(2, detach=True, name="long"), cell="pass")


def test_an_interrupt_of_who_looks_on_at_a_detached_run_leaves_it_alone_and_says_how_to_end_it(detached: Run) -> None:
    ends = lambda: put(detached, state="finished")  # noqa: E731  who looks on still would see this
    shown = LiveThatDoes(lambda: put(detached, state="running"), interrupt, ends)
    with pytest.raises(Interrupted, match="the run continues") as caught:
        Follower(detached, shown).follow()
    assert "distributed.stop('long')" in str(caught.value)
    assert "carme-hub runs stop long" in str(caught.value)
    assert (shown.ends, shown.last) == (1, "running")  # what stays in the notebook needs no kernel
    assert caught.value._render_traceback_() == [f"KeyboardInterrupt: {caught.value}"]


def test_of_a_detached_run_that_ended_as_the_interrupt_came_nobody_says_that_it_goes_on(detached: Run) -> None:
    def ends_just_then() -> None:
        put(detached, state="finished")
        raise KeyboardInterrupt

    shown = LiveThatDoes(ends_just_then)
    assert Follower(detached, shown).follow()["state"] == "finished"
    assert (shown.ends, shown.last) == (1, "finished")


def test_a_run_whose_conductor_says_it_ended_between_two_looks_is_seen(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = threading.Event()

    class FollowingThatEnds:
        def __iter__(self) -> Any:
            yield run.state() | {"state": "running"}
            put(run, state="finished")
            gone.set()

        def close(self) -> None:
            pass

    monkeypatch.setattr(Run, "follow", lambda self: FollowingThatEnds())
    assert Follower(run, LiveThatDoes(gone.wait)).follow()["state"] == "finished"


def test_what_rank_0_displays_comes_while_it_runs_and_each_once(run: Run) -> None:
    path = run.folder / DISPLAYED

    def more(text: str) -> Callable[[], None]:
        def write() -> None:
            with path.open("a") as file:
                file.write(text)

        return write

    first = json.dumps({"data": {"text/html": "<b>1</b>"}, "metadata": {}, "id": "", "update": False}) + "\n"
    bar = json.dumps({"data": {"text/html": "2"}, "metadata": {"text/html": {"isolated": True}}, "id": "x"}) + "\n"
    half, rest = bar[:9], bar[9:]
    end = lambda: put(run, state="finished")  # noqa: E731
    shown = LiveThatDoes(more(first), more(half), more(rest + 'no json\n[]\n{"data": 1}\n'), end)
    Follower(run, shown).follow()
    assert [each.data["text/html"] for each in shown.displayed] == ["<b>1</b>", "2"]
    assert shown.displayed[1] == DisplayOutput({"text/html": "2"}, {"text/html": {"isolated": True}}, "x", False)
    # Whoever opens the run again sees all of it.
    again = LiveThatDoes()
    Follower(run, again).follow()
    assert again.displayed == shown.displayed


def test_an_output_is_one_of_the_notebook_and_text_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    published: list[tuple[Any, ...]] = []
    notebook = Notebook(lambda data, metadata, *, transient, update: published.append((data, transient, update)))
    notebook.display(DisplayOutput({"image/png": "AAAA", "text/plain": "<Figure>"}))
    notebook.display(DisplayOutput({"text/html": "1"}, id="bar"))
    notebook.display(DisplayOutput({"text/html": "2"}, id="bar", update=True))
    assert published[0] == ({"image/png": "AAAA", "text/plain": "<Figure>"}, {}, False)
    (_, first, new), (_, second, update) = published[1:]
    assert first == second != {"display_id": "bar"}  # another run may have that id too
    assert (new, update) == (False, True)
    terminal = Terminal()
    terminal.display(DisplayOutput({"image/png": "AAAA", "text/plain": "<Figure>"}))
    terminal.display(DisplayOutput({"image/png": "AAAA"}))
    assert capsys.readouterr().out == "<Figure>\n"
