"""What is said of a curve follows from it, in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from base64 import b64decode
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_parts import curve, curve_of, run

from carme_hub.training.run.failures import CannotRun
from carme_hub.training.scaling import benchmark, plot
from carme_hub.training.scaling.bottleneck import bottleneck
from carme_hub.training.scaling.curve import Curve, Recommendation, Value
from carme_hub.training.scaling.hub import summary
from carme_hub.training.scaling.report import (
    advice_of,
    columns,
    headline,
    html_table,
    limit_of,
    number,
    rows,
    sentences,
    subject,
    table,
    to_csv,
)

SVG = "{http://www.w3.org/2000/svg}"


def of_the_issue(**more: object) -> Curve:
    runs = [run(n, 100 * (min(n, 4) + 0.11 * max(0, n - 4)), repeat=r) for n in (1, 2, 4, 8, 16) for r in range(3)]
    return curve(*runs, **more)


def test_the_sentence_of_the_issue() -> None:
    assert headline(of_the_issue()) == "Ask for 4, not 16: beyond 4 each further GPU adds 11 %."


def test_on_cpus_nobody_is_told_to_ask_for_gpus() -> None:
    said = table(of_the_issue(device="cpu", epoch=1000))
    assert "on CPU, no GPU" in said
    assert "further rank on CPUs adds 11 %" in said
    assert "GPU-hours" not in said


@pytest.mark.parametrize(
    ("knee", "said"),
    [
        (Recommendation(32, 8, 8, 0.924, 8), "No bend up to 8: the last ones added 92 % of a GPU each."),
        (Recommendation(32, 1, 4, 0.0, 1), "Ask for 1, not 4: beyond 1 each further GPU adds nothing."),
        (Recommendation(32, 1, 4, 0.004, 2), "Ask for 1, not 4: beyond 1 each further GPU adds nothing."),
        (
            Recommendation(32, 1, 10, 0.31, 2),
            "Ask for 1, not 10: beyond 1 each further GPU adds 31 %, up to 2; more are slower.",
        ),
        (Recommendation(32, 2, 4, -0.3, 2), "Ask for 2, not 4: beyond 2 each further GPU takes 30 % away."),
    ],
)
def test_every_kind_of_knee_has_its_sentence(knee: Recommendation, said: str) -> None:
    assert advice_of(knee, "gpu") == said


def test_it_is_said_how_sure_it_is() -> None:
    assert "Measured once" in headline(curve_of(lambda n: min(n, 2), (1, 2, 4)))
    runs = [run(n, 100 * n, repeat=r) for n in (1, 2) for r in range(3)]
    runs += [run(4, rate, repeat=r) for r, rate in enumerate((380.0, 390.0, 205.0))]
    assert headline(curve(*runs)).endswith("2 of 3 repeats agree.")
    assert "no curve" in headline(curve(run(1, 100)))


def test_the_batch_is_named_where_there_are_several() -> None:
    both = curve(*(run(n, b * n, batch=b) for n in (1, 2) for b in (32, 64)))
    assert "with batch 64" in headline(both)


# -- the bottleneck ---------------------------------------------------------------------------------------------------


def cause(*runs: object, mode: str = "weak", batch: int = 32, device: str = "gpu") -> tuple[str, str]:
    found = bottleneck(curve(*runs, mode=mode, device=device), batch)  # type: ignore[arg-type]
    assert found is not None
    return found.kind, found.message


def test_slow_loading_is_named() -> None:
    kind, said = cause(run(1, 100, loading=0.5, own=100, quiet=1, communication=0.0, waiting=0))
    assert kind == "loading"
    assert "50 %" in said


def test_communication_is_named() -> None:
    runs = [
        run(1, 100, own=100, quiet=1, communication=0, waiting=0),
        run(4, 240, own=98, quiet=0.6, communication=0.4, waiting=0.02),
    ]
    kind, said = cause(*runs)
    assert kind == "communication"
    assert "40 % of each step of 4 ranks" in said


def test_communication_that_a_larger_batch_hides_is_too_small_a_batch() -> None:
    runs = [run(4, 240, own=98, quiet=0.6, communication=0.4, waiting=0.0)]
    runs += [run(4, 350, batch=96, own=99, quiet=0.9, communication=0.1, waiting=0.0)]
    kind, said = cause(*runs)
    assert kind == "batch"
    assert "with batch 96 only 10 %" in said


def test_a_gpu_that_a_larger_batch_fills_has_too_small_a_batch() -> None:
    runs = [run(2, 100, own=50, quiet=1, communication=0.05, waiting=0.0)]
    runs += [run(2, 200, batch=96, own=100, quiet=1, communication=0.05, waiting=0.0)]
    kind, said = cause(*runs)
    assert kind == "batch"
    assert "50 % fewer" in said


def test_ranks_that_slow_each_other_without_communication_share_something() -> None:
    runs = [
        run(1, 100, own=100, quiet=1, communication=0, waiting=0),
        run(4, 110, own=28, quiet=0.95, communication=0.05, waiting=0),
    ]
    kind, said = cause(*runs, device="cpu")
    assert kind == "sharing"
    assert "CPU cores" in said
    assert "72 % slower" in said


def test_one_slow_rank_is_named() -> None:
    assert cause(run(4, 240, own=100, quiet=0.7, communication=0.05, waiting=0.25))[0] == "waiting"


def test_what_was_not_measured_is_not_guessed_at() -> None:
    kind, said = cause(run(1, 100), run(4, 200))
    assert kind == "unknown"
    assert "no steps alone" in said
    strong = [run(1, 100, each=32.0, own=100, quiet=1, communication=0, waiting=0)]
    strong += [run(4, 200, each=8.0, own=50, quiet=0.97, communication=0.03, waiting=0)]
    kind, said = cause(*strong, mode="strong")
    assert kind == "unknown"
    assert "8 samples in a step instead of 32" in said


def test_nothing_is_named_where_nothing_is_lost() -> None:
    runs = [
        run(1, 100, own=100, quiet=1, communication=0, waiting=0),
        run(4, 390, own=99, quiet=0.98, communication=0.02, waiting=0),
    ]
    assert cause(*runs)[0] == ""


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(*[st.floats(0, 1)] * 3, st.floats(1, 1e4), st.sampled_from([16, 32, 96]), st.integers(1, 16)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["strong", "weak"]),
)
def test_something_is_said_of_any_measurement(found: list[tuple[float, ...]], mode: str) -> None:
    runs = [
        run(int(n), rate, batch=int(b), own=rate, quiet=1 - c, communication=c, waiting=w, loading=wait)
        for c, w, wait, rate, b, n in found
    ]
    made = curve(*runs, mode=mode, epoch=100)
    assert limit_of(made) is not None
    assert all(sentences(made))
    assert all(len(row) == len(columns(made)) for row in rows(made))
    assert all(math.isfinite(panel.top) and panel.lines for panel in plot.panels(made))
    json.dumps(made.to_json(), allow_nan=False)


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (Value(123.456, 12.3, 0, 0, 3), "123 ± 12"),
        (Value(1.98765, 0.0432, 0, 0, 3), "1.988 ± 0.043"),
        (Value(4.1, 1.14, 0, 0, 3), "4.1 ± 1.1"),
        (Value(95.5, None, 0, 0, 1), "95.5"),
        (Value(12345.6, None, 0, 0, 1), "12346"),
        (Value(0.0, 0.0, 0, 0, 3), "0.000"),
    ],
)
def test_no_more_digits_than_the_error_leaves(value: Value | None, said: str) -> None:
    assert number(value) == said


def test_the_csv_has_what_the_curve_has() -> None:
    made = of_the_issue(epoch=3600)
    lines = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert [(int(line["ranks"]), float(line["speedup"])) for line in lines] == [
        (point.ranks, point.speedup.mean) for point in made.points() if point.speedup
    ]
    assert {line["repeats"] for line in lines} == {"3"}
    assert {line["quiet"] for line in lines} == {""}


def test_a_script_cannot_be_a_formula_in_a_spreadsheet() -> None:
    line = next(csv.DictReader(io.StringIO(to_csv(curve(run(1, 1), script="=cmd()")))))
    assert line["script"] == "'=cmd()"


def test_names_are_text_in_pages_and_pictures() -> None:
    made = curve(run(1, 100), run(2, 150), script="<script>alert(1)</script>&")
    for text in (plot.html(made), plot.svg(made), html_table(made)):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text
    ET.fromstring(plot.svg(made))


def test_the_picture_has_each_point_its_error_and_its_batch() -> None:
    runs = [
        run(n, 100 * n, batch=b, repeat=r, quiet=0.9, communication=0.1 + r / 100)
        for n in (1, 2, 4)
        for b in (32, 64)
        for r in range(3)
    ]
    made = curve(*runs)
    rates, efficiency, lost = plot.figure(plot.panels(made)).axes
    # A line for each batch; efficiency has two of them, against fewest ranks and against alone.
    assert [len(axes.containers) for axes in (rates, efficiency, lost)] == [2, 4, 2]
    points, _, bars = lost.containers[0]
    low, high = (
        dot.communication.mean + sign * dot.communication.error for dot in made.points(32)[:1] for sign in (-1, 1)
    )
    assert list(points.get_xdata()) == [1, 2, 4]
    assert bars[0].get_segments()[0][:, 1].tolist() == pytest.approx([low, high])
    for axes in (rates, efficiency, lost):
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["batch 32", "batch 64"]
    forms = {(line.get_color(), line.get_marker()) for line, _, _ in rates.containers}
    assert len({colour for colour, _ in forms}) == len({form for _, form in forms}) == 2


def test_the_file_says_what_it_is_to_who_cannot_see_it() -> None:
    made = of_the_issue()
    picture = ET.fromstring(plot.svg(made))
    assert picture.get("role") == "img"
    assert [picture.findtext(f"{SVG}{name}") for name in ("title", "desc")] == [subject(made), headline(made)]
    assert {"Samples a second", "Efficiency", "ranks", "worth it up to 4"} <= {
        text.text for text in picture.iter(f"{SVG}text")
    }
    assert plot.svg(made) == plot.svg(made)


def test_a_dollar_in_a_name_begins_no_formula() -> None:
    assert "$\\frac$.py on GPU" in plot.svg(of_the_issue(script="$\\frac$.py"))


def test_what_the_user_set_for_their_own_pictures_stays_theirs() -> None:
    before = plot.svg(of_the_issue())
    with matplotlib.rc_context({"font.size": 30, "figure.facecolor": "black"}):
        assert plot.svg(of_the_issue()) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_the_last_number_of_ranks_is_named_however_many_there_are() -> None:
    axes = plot.figure(plot.panels(curve_of(float, tuple(range(1, 65))))).axes[0]
    assert len(axes.get_xticks()) <= 10
    assert max(axes.get_xticks()) == 64


def test_on_a_narrow_page_the_plots_scroll_and_stay_readable() -> None:
    page = plot.html(of_the_issue())
    assert re.search(r'<div tabindex="0" role="region" aria-label="Plots" style="[^"]*overflow-x:auto', page)
    pictures = re.findall(
        r'<img src="data:image/svg\+xml;base64,([^"]*)" style="[^"]*min-width:320px[^"]*" alt="(.*?)"', page
    )
    assert [alt.partition(",")[0] for _, alt in pictures] == ["Samples a second", "Efficiency"]
    for picture, _ in pictures:
        assert ET.fromstring(b64decode(picture)).tag == f"{SVG}svg"


def test_a_wide_error_does_not_flatten_the_lines() -> None:
    runs = [run(n, 100 * n * (1 + 5 * r), repeat=r) for n in (1, 2, 4) for r in range(3)]
    rates = plot.panels(curve(*runs))[0]
    highest = max(value for line in rates.lines if line.mark for _, value, _ in line.dots)
    assert highest < rates.top <= 1.4 * highest


def test_few_repeats_have_no_error_bars_and_it_is_said() -> None:
    twice = table(curve(*(run(n, 100 * n + r, repeat=r) for n in (1, 2) for r in (0, 1))))
    assert "±" not in twice.partition("± is half")[0]
    assert "Fewer than 3 repeats" in twice
    assert "Fewer than 3 repeats" not in table(of_the_issue())


def test_what_is_measured_lies_inside_of_its_panel() -> None:
    runs = [run(n, 100 * n * (1.5 if r else 0.5), repeat=r, quiet=1.2) for n in (1, 2, 64) for r in (0, 1)]
    for axes in plot.figure(plot.panels(curve(*runs))).axes:
        for line, _, _ in axes.containers:
            assert all(axes.viewLim.contains(*dot) for dot in line.get_xydata())


def test_an_image_without_matplotlib_has_the_table_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (plot.png, plot.svg):
        with pytest.raises(plot.NoMatplotlib, match=r"needs matplotlib.*\.html"):
            draw(of_the_issue())
    page = plot.html(of_the_issue())
    assert plot.WITHOUT in page
    assert html_table(of_the_issue()) in page


@pytest.mark.parametrize("format", ["svg", "png", "csv", "json", "txt", "html"])
def test_a_report_is_written_in_the_format_of_its_file(tmp_path: Path, format: str) -> None:
    report = benchmark.Report(of_the_issue())
    report.save(tmp_path / f"curve.{format}")
    assert (tmp_path / f"curve.{format}").read_bytes() == report.as_bytes(format)


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="a curve can be written as"):
        benchmark.Report(of_the_issue()).save(tmp_path / "curve.pdf")
    assert not list(tmp_path.iterdir())


# -- what the hub is told ---------------------------------------------------------------------------------------------


def test_the_hub_is_told_little_enough_of_the_largest_curve() -> None:
    runs = [
        run(n, 100 * n**0.7, batch=b, repeat=r, quiet=0.9)
        for n in range(1, 129)
        for b in (32, 64, 96)
        for r in range(3)
    ]
    said = summary(curve(*runs, script="x" * 500))
    assert said is not None
    assert len(json.dumps(said)) < 8192
    ranks = [point["ranks"] for point in said["points"]]
    assert {1, 128, said["ranks"]} <= set(ranks)
    assert summary(curve(run(1, 100))) is None
