"""What pages of runs are made of: inert text, findings of a network, round numbers at axes."""

import numpy as np
import pytest

from penstock.handlers.report.curves import Metric, draw_metrics
from penstock.handlers.report.findings import Answers, Findings
from penstock.handlers.report.page import STYLE, Page, add, add_table
from penstock.handlers.report.run_page import add_answers, add_times
from tests.html_pages import HtmlPage

EVIL = "<script>alert('no')</script>"


def test_names_from_data_are_inert(tmp_path):
    page = Page(EVIL)
    add_table(page.add_section("Classes"), (EVIL,), [(EVIL,)])
    add(page.main, "img", alt='" onerror="alert(1)', src="data:,")
    page.leave_out("Curves", f"of {EVIL}\udc80")
    page.write(tmp_path / "a.html")
    html = HtmlPage(tmp_path / "a.html")
    assert not html.all("script")
    assert all("onerror" not in image for image in html.all("img"))
    assert html.said.count(EVIL) == 5
    policies = [meta.get("content") for meta in html.all("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_findings_keep_the_worst_mistakes_over_batches():
    findings = Findings(3, num_mistakes=2, num_samples=1)
    shares = [[0.6, 0.3, 0.1], [0.7, 0.2, 0.1], [0.9, 0.05, 0.05], [0.2, 0.7, 0.1]]
    for row, label in zip(shares, (1, 2, 2, 1), strict=True):
        image = np.full((1, 2, 2, 1), 10 * label, np.uint8)
        findings.add(np.array([label]), np.array([row]), image)
        # The reader's own: it may be written to again.
        image[:] = 255
    assert [(case.number, case.right_share) for case in findings.mistakes] == [(2, 0.05), (1, 0.1)]
    assert findings.mistakes[0].image is not None
    assert findings.mistakes[0].image.max() == 20
    assert findings.accuracy == 0.25
    assert findings.cross_entropy == pytest.approx(-np.log([0.3, 0.1, 0.05, 0.7]).mean())
    assert {label: [case.number for case in kept] for label, kept in findings.samples.items()} == {
        1: [0],
        2: [1],
    }


def test_calibration_of_a_network_that_is_too_sure():
    findings = Findings(2, num_mistakes=0, num_samples=0)
    labels = np.array([0, 0, 0, 1])
    findings.add(labels, np.tile([0.95, 0.05], (4, 1)), np.zeros((4, 2, 2, 1), np.uint8))
    assert findings.calibration_error == pytest.approx(0.2)
    assert findings.bins[9].tolist() == [4, pytest.approx(3.8), 3]


def test_broken_probabilities_are_counted():
    findings = Findings(2, num_mistakes=1, num_samples=0)
    findings.add(np.array([1]), np.array([[np.nan, np.nan]]), np.zeros((1, 2, 2, 1), np.uint8))
    assert (findings.num_broken, findings.accuracy) == (1, 0.0)


def test_small_print_is_what_explains_a_picture_and_no_result(tmp_path):
    page, result = Page("run"), Findings(2, num_mistakes=1, num_samples=1)
    shares = np.array([[0.9, 0.1], [0.8, 0.2]])
    result.add(np.array([0, 1]), shares, np.zeros((2, 2, 2, 1), np.uint8))
    add_answers(page, Answers(findings=result, names=("cat", "dog")), ("--mistakes=9", "--samples"))
    page.write(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert '<p class="note">As the network gets them.' in text
    assert "<p>The mean confidence is" in text


@pytest.mark.parametrize("measure", [0.0, 1.0], ids=["nothing measured", "gradients measured"])
def test_colors_of_times_are_those_of_the_bar(tmp_path, measure):
    page = Page("run")
    secs = {"steps": 3.0, "data_wait": 0.5, "measure": measure, "compile": 2.0, "between": 1.0}
    add_times(page, secs, "")
    page.write(tmp_path / "a.html")
    html = HtmlPage(tmp_path / "a.html")
    swatches = [str(span["class"]) for span in html.all("span") if "swatch" in str(span["class"])]
    bars = [bar["class"] for bar in html.all("i")]
    assert [swatch.removeprefix("swatch ") for swatch in swatches] == bars
    # Each has a color in the page's style.
    assert all(f".{bar} {{ background" in STYLE for bar in bars)


@pytest.mark.parametrize(
    ("num_points", "num_tests", "key"),
    [
        (3, 0, "training , by steps done."),
        (3, 2, "training , test (dots) , by steps done."),
        (30, 0, "training (smoothed, over the faint values) , by steps done."),
    ],
)
def test_the_key_names_only_what_is_drawn(tmp_path, num_points, num_tests, key):
    page = Page("run")
    lines = [(np.arange(1.0, n + 1), np.arange(float(n))) for n in (num_points, num_tests)]
    draw_metrics(page.main, [Metric(name="loss", train=lines[0], test=lines[1])])
    page.write(tmp_path / "a.html")
    assert key in HtmlPage(tmp_path / "a.html").said


def test_numbers_at_an_axis_differ_and_steps_are_whole(tmp_path):
    page = Page("run")
    train = np.array([1.0, 2.0]), np.array([6.48931, 6.48938])
    draw_metrics(page.main, [Metric(name="norm", train=train, test=(np.zeros(0), np.zeros(0)))])
    page.write(tmp_path / "a.html")
    text = HtmlPage(tmp_path / "a.html").said
    assert "6.48932 6.48934 6.48936" in text
    assert "0 1 2 step" in text


@pytest.mark.parametrize("values", [[1e308, -1e308, 1e200, -1e200], [5e-324, 0.0, 1e-310, 1e308]])
def test_values_of_any_size_are_drawn_or_counted(values, tmp_path):
    page, none = Page("run"), (np.zeros(0), np.zeros(0))
    draw_metrics(page.main, [Metric(name="x", train=(np.arange(4.0), np.array(values)), test=none)])
    page.write(tmp_path / "a.html")
    page = HtmlPage(tmp_path / "a.html")
    num_left_out = np.sum(np.abs(values) > 1e200)
    assert f"infinite or beyond 1e+200 are left out: {num_left_out}." in page.said
    (line,) = page.all("polyline")
    points = np.array([point.split(",") for point in line["points"].split()], float)
    assert len(points) == 4 - num_left_out
    assert np.isfinite(points).all()
