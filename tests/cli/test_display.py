"""The display: a bar in a terminal, lines in a log file, nothing on stdout."""

import io

import pytest
from rich.console import Console

from noback.cli import display
from noback.cli.display import Display
from noback.values import Estimate, Score


@pytest.fixture
def shown(monkeypatch):
    """A display that writes to a string, in a terminal or not."""

    def make(terminal):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=140, highlight=False)
        monkeypatch.setattr(display, "Console", lambda **_: console)
        return Display(), text

    return make


def course(watcher):
    watcher.note("a note")
    watcher.evaluated(0, Score(0.5, 0.5, 0.7, 0.7, 8, [[2, 2], [2, 2]]))
    for step in range(1, 4):
        watcher.stepped(step, 3, Estimate(0.65, (1,), (-2.5,)))
    watcher.evaluated(3, Score(0.75, 0.75, 0.6, 0.6, 8, [[3, 1], [1, 3]]))
    watcher.close()


def test_a_log_file_gets_lines_with_step_loss_slope_validation_and_time_left(shown):
    watcher, text = shown(terminal=False)
    course(watcher)
    lines = text.getvalue().splitlines()
    assert lines[0] == "a note"
    assert "step 0  validation accuracy 50.0%  loss 0.700" in lines
    assert "step 3/3  loss 0.650  slope -2.50  validation 50.0%  0 s left" in lines
    assert "step 3  validation accuracy 75.0%  loss 0.600" in lines
    assert "\x1b" not in text.getvalue()


def test_a_terminal_gets_a_bar_with_the_same(shown):
    watcher, text = shown(terminal=True)
    course(watcher)
    for piece in ("a note", "training", "3/3", "loss 0.650", "slope -2.50", "validation 50.0%"):
        assert piece in text.getvalue()


def test_short_work_shows_no_bar(shown):
    watcher, text = shown(terminal=True)
    for done in (1, 2, 3):
        watcher.progress("answering the test set", done, 3)
    assert text.getvalue() == ""


def test_long_work_shows_a_bar(shown, monkeypatch):
    now = iter([0.0, 0.0, 5.0, 6.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(now, 9.0))
    watcher, text = shown(terminal=True)
    watcher.progress("answering the test set", 1, 3)
    watcher.progress("answering the test set", 2, 3)
    watcher.progress("answering the test set", 3, 3)
    assert "answering the test set" in text.getvalue()


def test_a_note_does_not_steer_the_terminal_nor_become_an_emoji(capsys):
    Display().note("\x1b[31mred\u202e :smile: [bold]")
    assert capsys.readouterr().err == "\\x1b[31mred\\u202e :smile: [bold]\n"
