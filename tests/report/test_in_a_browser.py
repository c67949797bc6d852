"""The page in a real Chromium, opened from the disk: its figures, its themes, its width, and its silence."""

import json
import shutil

import pytest

from noback.journal import read_journal
from tests.report.conftest import LABELS, metrics_of, raised_eps, write_lines, write_reproduction

EVIL = '<script>window.broken = 1</script><img src=x onerror="window.broken = 1">'
DRAWN = "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"  # a new theme has been told


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine: the page is not looked at in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Opens a report; afterwards it must have been silent: no error, no request but for itself."""
    troubles, requests, contexts = [], [], []

    def call(path, **options):
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        assert page.evaluate(DRAWN)  # the page draws before it is loaded
        return page

    yield call
    for context in contexts:
        context.close()
    assert troubles == []
    assert [url for url in requests if not url.startswith(("data:", "file://"))] == []
    assert len([url for url in requests if url.startswith("file://")]) == len(contexts)


@pytest.fixture
def finished(folders, make_report):
    """The folder of a finished run with its report."""
    path = folders.run(eps_changes=raised_eps())
    make_report(path)
    return path


def plotted(page, chart):
    return page.evaluate(f"document.getElementById('chart-{chart}').data")


def colour_of(page, selector, name):
    return page.evaluate(f"getComputedStyle(document.querySelector({selector!r})).{name}")


def test_the_figures_on_the_page_are_those_of_the_metrics(finished, opened):
    page = opened(finished / "report.html")
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    tests = {line["at"]: line for line in lines if line["kind"] == "test"}
    before = next(line for line in lines if line["kind"] == "zero_shot")
    result = lines[-1]
    wanted = {
        "accuracy-before": (before["accuracy"], "60.0%"), "accuracy-best": (tests["best"]["accuracy"], "81.2%"),
        "accuracy-last": (tests["final"]["accuracy"], "78.0%"), "seconds": (result["seconds"], "25.5 s"),
        "peak-memory": (result["peak_memory_bytes"], "1.23 GiB"), "forwards": (result["forwards"], "160"),
        "confusion-0-0": (tests["best"]["confusion"][0][0], "200"), "health-10-zero_slope_share": (0.125, "12.5%"),
        "update-0-relative": (0.0001, "1.0e-04"), "balance-train-1": (16, "16"),
        "noise-10-two_eps": (0.125, "12.5%"), "noise-10-repeat": (0.0, "0.0%"), "probe-0-curvature": (3e-05, "3.0e-05"),
    }  # fmt: skip
    for name, (value, text) in wanted.items():
        cell = page.locator(f'[data-figure="{name}"]')
        assert float(cell.get_attribute("data-value")) == value, name
        assert cell.inner_text() == text, name


def test_the_charts_plot_what_the_journal_and_the_metrics_hold(finished, opened):
    page = opened(finished / "report.html")
    contents = read_journal(finished / "journal")
    losses, averages = plotted(page, "loss")
    assert losses["y"] == [record.loss for record in contents.steps]
    assert averages["y"][0] == losses["y"][0]
    assert averages["y"][-1] == pytest.approx(sum(losses["y"][-5:]) / 5)
    assert plotted(page, "slopes")[0]["y"] == [slope for record in contents.steps for slope in record.slopes]
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    looks = [line for line in lines if line["kind"] == "validation"]
    assert plotted(page, "accuracy")[0]["x"] == [look["step"] for look in looks]
    assert plotted(page, "accuracy")[0]["y"] == [look["accuracy"] for look in looks]
    assert plotted(page, "validation-loss")[1]["y"] == [look["objective"] for look in looks]
    assert plotted(page, "test-accuracy")[0]["x"] == [0.6, 0.8125, 0.78]
    assert sum(plotted(page, "sizes")[0]["y"]) == pytest.approx(1.0)
    eps = plotted(page, "eps")[0]
    assert eps["x"] == [0, 16, 32, 40]
    assert eps["y"] == pytest.approx([0.001, 0.002, 0.004, 0.004])


def test_the_themes_differ_and_the_charts_follow_while_the_page_is_open(finished, opened):
    page = opened(finished / "report.html", color_scheme="light")
    seen = []
    for scheme in ("light", "dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(FRAMES)
        background = colour_of(page, "body", "backgroundColor")
        seen.append((background, colour_of(page, "#chart-loss .xtick text", "fill")))
    light, dark, again = seen
    assert light == again
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_a_page_opened_in_the_dark_is_dark(finished, opened):
    page = opened(finished / "report.html", color_scheme="dark")
    red, green, blue = [int(part) for part in colour_of(page, "body", "backgroundColor")[4:-1].split(",")]
    assert max(red, green, blue) < 64
    assert colour_of(page, "#chart-loss .scatterlayer path.js-line", "stroke") == "rgb(110, 168, 254)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_print_the_page_is_light_and_no_chart_is_cut_off(finished, opened, scheme):
    page = opened(finished / "report.html", color_scheme=scheme)
    page.set_viewport_size({"width": 680, "height": 900})  # the printed width of A4 in CSS pixels
    page.emulate_media(media="print", color_scheme=scheme)
    page.evaluate(FRAMES)
    assert "printing" in page.locator("html").get_attribute("class")
    wide = page.evaluate(
        "[...document.querySelectorAll('figure')].filter(figure =>"
        " figure.querySelector('.main-svg').getBoundingClientRect().right > figure.getBoundingClientRect().right + 1"
        " || figure.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert wide == 0
    assert colour_of(page, "body", "color") == "rgb(27, 29, 33)"
    assert colour_of(page, "#chart-loss .xtick text", "fill") == "rgb(76, 82, 92)"


def test_a_phone_scrolls_wide_tables_in_their_box_and_never_the_page(folders, make_report, opened, tmp_path):
    labels = ["a-label-that-is-very-long-and-has-no-place-to-break-" * 3, *(f"label {index}" for index in range(11))]
    confusion = [[1000 + row * column for column in range(12)] for row in range(12)]
    lines = [{**line, "confusion": confusion} if "confusion" in line else line for line in metrics_of(labels, 40)]
    paths = [folders.run("wide", labels=labels, metrics=lines), folders.run("b" * 100)]
    make_report(*paths, "--out", tmp_path / "both.html")
    make_report(paths[0])
    for report in (tmp_path / "both.html", paths[0] / "report.html"):
        page = opened(report, viewport={"width": 375, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 375
    boxes = "[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)"
    assert page.evaluate(boxes)


def test_html_in_labels_texts_and_names_is_shown_and_does_not_run(folders, make_report, opened, tmp_path):
    labels = [EVIL, '<b>bold</b> & "quoted"']
    path = folders.run("<i>run<i>", labels=labels)
    lines = metrics_of(labels, 40)
    next(line for line in lines if line["kind"] == "mistakes")["mistakes"][0]["sentences"] = [EVIL]
    write_lines(path, lines)
    make_report(path, "--out", tmp_path / "one.html")
    make_report(path, folders.run("<b>other<b>"), "--out", tmp_path / "two.html")
    page = opened(tmp_path / "one.html")
    assert page.evaluate("window.broken") is None
    assert page.locator("h1").inner_text() == "<i>run<i>"
    assert page.locator("td", has_text="onerror").first.is_visible()
    page = opened(tmp_path / "two.html")
    assert page.evaluate("window.broken") is None
    names = page.locator("#chart-test-accuracy .ytick text").all_text_contents()
    assert sorted(names) == ["<b>other<b>", "<i>run<i>"]


def test_the_legend_hides_a_run_in_every_chart(folders, make_report, opened, tmp_path):
    make_report(folders.run("one"), folders.run("two", scale=10.0), "--out", tmp_path / "both.html")
    page = opened(tmp_path / "both.html")
    page.get_by_role("button", name="two").click()
    for chart in ("loss", "accuracy", "slopes", "sizes", "test-accuracy"):
        for trace in plotted(page, chart):
            assert trace["visible"] == ("two" not in trace["name"]), chart
    page.get_by_role("button", name="two").click()
    assert all(trace["visible"] for trace in plotted(page, "loss"))


def test_an_empty_run_opens_without_a_sound(folders, make_report, opened):
    path = folders.empty()
    make_report(path)
    assert "This run is empty" in opened(path / "report.html").inner_text("main")


def test_the_labels_are_named_beside_their_answers(finished, opened):
    page = opened(finished / "report.html")
    section = page.locator("section", has=page.locator('[data-figure="confusion-0-0"]'))
    assert section.locator("tbody th").all_inner_texts() == LABELS


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reproduction_fits_a_phone_and_keeps_its_methods_in_sight(make_report, opened, tmp_path, scheme):
    tasks = ("sst2", EVIL)
    folder = write_reproduction(tmp_path / "grid", gap="no-place-to-break-" * 20 + EVIL, tasks=tasks)
    make_report(folder)
    page = opened(folder / "report.html", viewport={"width": 375, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.evaluate("window.broken") is None
    assert page.locator('[data-figure="MeZO-16-sst2"]').inner_text() == "61.5 (6.1)"
    assert plotted(page, "task-0")[1]["x"] == [79.0, 90.5]
    page.evaluate("document.querySelector('.scroll').scrollLeft = 60")
    assert page.locator("th", has_text="MeZO").first.bounding_box()["x"] == 16
