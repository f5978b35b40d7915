"""What is shown of a run says it all without colours, and nothing that ranks print gets out of its box."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notebook_parts import state

from carme_hub.training.notebook import display
from carme_hub.training.run import description
from carme_hub.training.run.description import View

#: Elements without an end.
VOID = {"br", "hr", "img", "input", "meta"}


class Tags(HTMLParser):
    """Takes a page apart; its elements have to be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_run_that_goes_on_says_where_how_far_how_fast_and_what_it_cost() -> None:
    view = View(state(), 1042.0, {0: ["epoch 1"], 1: ["other"]}, "/home/a/.carme/runs/run1")
    said = description.as_text(view)
    assert "Running. run1: 2 ranks on n1 and n2, 2 GPUs, horovod; 0:42 elapsed, 1:24 of GPU time" in said
    assert "[#####---------------] step 30 of 120, 1,230 samples/s" in said
    assert "0     n1    running  30 of 120  620.0      91 %  99 %" in said
    assert said.index("epoch 1") < said.index("The output of the other ranks is in /home/a/.carme/runs/run1")
    page = display.as_html(view)
    assert '<progress aria-label="Steps" value="30" max="120">' in page
    assert "details" not in Tags(page).seen  # each update would close what people opened
    assert "91 %" in page


def test_a_rank_that_was_given_back_is_no_longer_counted() -> None:
    ranks = [{**rank, "rate": 300.0, "step": 3} for rank in state()["ranks"]]
    ranks[1]["state"] = "done"
    elastic = {"ranks": 2, "backend": "torchrun", "elastic": [1, 4]}
    said = description.as_text(View(state(ranks=ranks, asked=elastic, nodes=["n1"], gpus=1), 1042.0))
    assert "run1: 1 rank on n1, 1 GPU" in said
    assert "300 samples/s" in said
    fixed = description.as_text(View(state(ranks=ranks), 1042.0))
    assert "run1: 2 ranks" in fixed
    assert "600 samples/s" in fixed


def test_a_rank_of_which_only_slurm_speaks_has_printed_nothing() -> None:
    said = ["slurmstepd: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***"]
    assert "It has printed nothing." in display.log_html(said)


def test_at_its_end_the_other_ranks_are_folded_under_rank_0() -> None:
    page = display.as_html(View(state(state="finished", ended=1042.0), 2000.0, {0: ["zero"], 1: ["one"]}, "/f"))
    assert Tags(page).seen.count("details") == 1
    assert (
        page.index("zero") < page.index("<details><summary>Rank 1 on n2, running</summary>") < page.index("one</pre>")
    )
    assert "0:42 in all" in page
    assert "Finished" in page


def test_a_failure_says_which_rank_where_and_what() -> None:
    error = {"rank": 1, "node": "n2", "type": "builtins.ValueError", "message": "<no>", "traceback": ""}
    view = View(state(state="failed", error=error), 1042.0)
    assert description.failure(view) == "Rank 1 on n2: ValueError: <no>"
    assert "Rank 1 on n2: ValueError: &lt;no&gt;" in display.as_html(view)
    assert "Rank 1 on n2: ValueError: <no>" in description.as_text(view)
    nobody = View(state(error={"rank": None, "type": "TimeLimit", "message": "over"}), 1042.0)
    assert description.failure(nobody) == "TimeLimit: over"


def test_of_many_ranks_the_first_and_those_that_failed_are_shown() -> None:
    ranks = [{"rank": rank, "node": "n", "state": "failed" if rank == 900 else "running"} for rank in range(1000)]
    shown, more = description.visible_ranks(View(state(ranks=ranks), 0))
    assert [rank["rank"] for rank in shown] == [*range(15), 900]
    assert more == 984
    assert "and 984 ranks more" in description.as_text(View(state(ranks=ranks), 0))


def test_whoever_counts_steps_from_0_has_done_them_all_at_the_end() -> None:
    ranks = [{"rank": 0, "step": 9, "total": 10}]
    assert description.progress(View(state(ranks=ranks), 0)) == (9, 10)
    assert description.progress(View(state(ranks=ranks, state="finished"), 0)) == (10, 10)
    assert description.progress(View(state(ranks=ranks, state="failed"), 0)) == (9, 10)
    assert description.progress(View(state(ranks=[{"rank": 0, "step": None}]), 0)) == (0, 0)


def test_before_there_are_ranks_it_says_what_it_waits_for() -> None:
    view = View(state(state="waiting", ranks=[], nodes=[], gpus=0, message="2 nodes, at about 14:02"), 1001.0)
    assert description.as_text(view).startswith("Waiting for GPUs. run1: 2 ranks, 2 GPUs, horovod; 0:01 elapsed")
    assert "2 nodes, at about 14:02" in description.as_text(view)
    assert "<table" not in display.as_html(view)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        (" 10%\r 50%\r100%\n", "100%"),
        ("\x1b]0;title\x07text", "text"),
        ("tab\tstays", "tab\tstays"),
        ("bell\x07\x00", "bell"),
    ],
)
def test_lines_are_shown_as_a_terminal_leaves_them(line: str, shown: str) -> None:
    assert description.plain(line) == shown


def test_that_a_step_was_cancelled_is_said_once_and_not_by_slurm() -> None:
    lines = ["step 25", "slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-22T13:33:55 ***"]
    for page in (display.log_html(lines), description.as_text(View(state(), 1042.0, {0: lines}))):
        assert "step 25" in page
        assert "CANCELLED" not in page


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00"), (42.9, "0:42"), (61, "1:01"), (3723, "1:02:03"), (-1, "0:00")]
)
def test_times(seconds: float, said: str) -> None:
    assert description.format_duration(seconds) == said


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from([*description.STATE_LABELS, "what"]))
def test_whatever_ranks_and_errors_say_is_text(line: str, message: str, how: str) -> None:
    ranks = [{"rank": 0, "node": line, "state": line}, {"rank": 1, "node": message, "state": how}]
    error = {"rank": 1, "node": line, "type": line, "message": message}
    said = state(state=how, name=line, message=message, ranks=ranks, error=error, nodes=[line, message])
    view = View(said, 1042.0, {0: [line], 1: [message]}, line)
    known = {"style", "div", "p", "span", "progress", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    assert set(Tags(display.as_html(view)).seen) <= known | {"details", "summary"}
    assert set(Tags(display.runs_html([said], 1042.0)).seen) <= known
    assert description.as_text(view)


def test_runs_are_a_table() -> None:
    other = state(id="old", state="lost", message="Its session has ended.", ended=4600.0)
    said = description.runs_text([state(), other], 1042.0)
    first, second, third = said.splitlines()
    assert first.split() == ["Run", "State", "Ranks", "Nodes", "Began", "Took", "GPU", "time", "Message"]
    assert second.startswith("run1  Running  2      n1 and n2")
    assert third.startswith("old   Lost ")
    assert third.endswith("1:00:00  1:24      Its session has ended.")
    assert description.runs_text([], 0) == "There is no run yet."
