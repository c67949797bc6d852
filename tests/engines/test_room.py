"""The room: what a forward took tells what a larger one will take, and what would not fit is cut before it runs."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from noback import memory
from noback.engines import STILL, Local, room
from noback.engines.room import GpuMemory, Room, Size
from noback.errors import InputError
from noback.values import Move, Term
from tests.conftest import tiny_model, weights_of

POINTS = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),)), Move((Term(4, 1e-2),)), Move((Term(4, -1e-2),))]
GPU = torch.device("cuda", 0)
WHOLE = Size(points=2, rows=64, tokens=32, displaced=True)
LARGE = dataclasses.replace(WHOLE, rows=room._SMALL)


class Device:
    """A device with so many free bytes, on which a forward takes what it is told to take."""

    def __init__(self, free=10**12):
        self.bytes_free, self.takes, self.asked = free, 0, 0

    def allocated(self):
        return 500

    def restart_peak(self):
        self.most = 0

    def peak(self):
        return 500 + self.takes

    def free(self):
        self.asked += 1
        return self.bytes_free


class Told:
    """A room on such a device, and what it says."""

    def __init__(self, free=10**12):
        self.device, self.said = Device(free), []
        self.room = Room(self.device, self.said.append)

    def ran(self, size, takes):
        self.device.takes = takes
        with self.room.watching(size):
            pass


def free_for(need):
    """The free bytes of which so many are used at most."""
    return need / room._SHARE + 1


# What is predicted


@pytest.mark.parametrize(
    ("free", "cut"),
    [(800, (2, 64)), (799, (1, 64)), (400, (1, 64)), (399, (1, 32)), (100, (1, 16)), (7, (1, 1)), (0, (1, 1))],
)
def test_points_are_cut_first_then_examples_never_below_one_at_one(free, cut):
    told = Told(free_for(free))
    told.ran(Size(2, 8, 32, True), takes=100)
    assert told.room.fitting(WHOLE, 64) == cut
    assert bool(told.said) is (cut != (2, 64))


def test_three_points_and_seven_examples_are_cut_into_even_parts():
    told = Told(free_for(50))
    told.ran(Size(1, 1, 32, True), takes=10)
    assert told.room.fitting(Size(3, 7, 32, True), 7) == (1, 4)


def test_candidates_are_rows_of_their_example():
    told = Told(free_for(40))
    told.ran(Size(1, 4, 32, True), takes=4)
    assert told.room.fitting(Size(1, 80, 32, True), 20) == (1, 10)


def test_longer_rows_take_the_square_of_their_tokens_and_shorter_ones_their_share():
    told = Told(free_for(400))
    told.ran(Size(1, 16, 32, True), takes=100)
    assert told.room.fitting(Size(1, 16, 64, True), 16) == (1, 16)
    assert told.room.fitting(Size(1, 16, 65, True), 16) == (1, 8)
    assert told.room.fitting(Size(1, 128, 16, True), 128) == (1, 128)


def test_displaced_forwards_and_others_are_told_apart():
    told = Told(free_for(100))
    told.ran(dataclasses.replace(WHOLE, points=1, displaced=False), takes=1)
    assert told.room.fitting(WHOLE, 64) == (2, 64)  # nothing is known of perturbed weights
    told.ran(Size(2, 8, 32, True), takes=100)
    assert told.room.fitting(WHOLE, 64) == (1, 16)


# What is learned


def test_the_largest_forward_teaches_and_a_smaller_one_does_not():
    told = Told(free_for(250))
    told.ran(Size(2, 8, 32, True), takes=100)
    assert told.room.fitting(WHOLE, 64) == (1, 32)
    told.ran(Size(1, 4, 32, True), takes=10**9)
    assert told.room.fitting(WHOLE, 64) == (1, 32)
    told.ran(Size(1, 32, 32, True), takes=110)  # most of the hundred were perturbed weights
    assert told.room.fitting(WHOLE, 64) == (1, 64)


def test_the_device_is_asked_once_about_a_size_and_again_when_more_is_known():
    told = Told(free_for(100))
    told.ran(Size(2, 8, 32, True), takes=100)
    for _ in range(3):
        told.room.fitting(WHOLE, 64)
    assert told.device.asked == 1
    told.ran(Size(2, 10, 32, True), takes=100)
    told.room.fitting(WHOLE, 64)
    assert (told.device.asked, len(told.said)) == (2, 1)  # and it is said once


def test_the_device_is_not_asked_about_less_than_has_run():
    """Rows that bring their own choices give nearly every batch another number of rows."""
    told = Told(free=0)
    told.ran(WHOLE, takes=100)
    for rows in range(1, WHOLE.rows):
        assert told.room.fitting(dataclasses.replace(WHOLE, rows=rows), rows) == (2, rows)
    assert not told.device.asked


def test_a_size_that_has_run_runs_again_and_is_watched_no_more():
    """A captured forward takes nothing when it is replayed, which would teach a wrong thing."""
    told = Told(free_for(100))
    told.ran(Size(2, 8, 32, True), takes=100)
    told.ran(WHOLE, takes=800)
    for _ in range(2):
        told.ran(WHOLE, takes=0)
        told.ran(Size(2, 8, 32, True), takes=0)
    assert told.room.fitting(WHOLE, 64) == (2, 64)
    assert told.device.asked == 0
    assert told.room.fitting(dataclasses.replace(WHOLE, rows=65), 65) == (1, 9)


def test_a_forward_that_failed_teaches_nothing():
    told = Told()
    with pytest.raises(torch.OutOfMemoryError), told.room.watching(WHOLE):
        raise torch.OutOfMemoryError
    assert told.room.trial(LARGE, 64) == 8
    assert told.room.fitting(WHOLE, 64) == (2, 64)


def test_a_part_is_tried_first_only_where_the_whole_is_large_and_nothing_is_known():
    assert [Told().room.trial(LARGE, examples) for examples in (64, 9, 8, 1)] == [8, 2, 1, 1]
    assert Told().room.trial(Size(2, 1, 32, True), 1) == 0  # small
    assert Told().room.trial(Size(1, room._SMALL, 32, True), 1) == 0  # nothing to cut
    told = Told()
    told.ran(LARGE, takes=1)
    assert told.room.trial(LARGE, 64) == 0
    assert told.room.trial(dataclasses.replace(LARGE, displaced=False), 64) == 8


# A GPU's figures


def test_free_are_the_drivers_bytes_and_the_idle_ones_that_no_captured_forward_keeps(monkeypatch):
    figures = {"mem_get_info": (1000, 9000), "memory_reserved": 700, "memory_allocated": 200}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, figure=figure: figure)
    assert [GpuMemory(GPU, SimpleNamespace(held=held)).free() for held in (0, 300, 600)] == [1500, 1200, 1000]


def test_a_peak_that_was_set_aside_is_not_lost_until_it_is_forgotten(monkeypatch):
    peaks = iter([900, 300, 400])  # before it is set aside, after, and after it is forgotten
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: next(peaks))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: None)
    memory.set_peak_aside(GPU)
    assert memory.peak_memory(GPU) == 900
    memory.forget_peak()
    assert memory.peak_memory(GPU) == 400


# The engine


class Cells(Device):
    """A device on which a forward takes a byte a token."""

    def __init__(self, free, model):
        super().__init__(free)
        self.most, self.forwards = 0, []
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _model, _args, inputs):
        self.most = max(self.most, inputs["input_ids"].numel())
        self.forwards.append(inputs["input_ids"].numel())

    def peak(self):
        return self.allocated() + self.most


@pytest.fixture
def engine_with(monkeypatch, small_task):
    """Makes an engine with so many free bytes, its device and what it says."""
    monkeypatch.setattr(room, "_SMALL", 0)

    def made(free, **options):
        model, said = tiny_model("roberta"), []
        engine = Local(model, weights_of(model), small_task.word_ids, say=said.append, **options)
        device = Cells(free, model)
        engine._room = Room(device, said.append)
        return engine, device, said

    return made


def plain_scores(task, batch, points=POINTS):
    model = tiny_model("roberta")
    return Local(model, weights_of(model), task.word_ids).score(batch, points)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share", [4, 2, 1, 0.5, 0.25, 0.1])
def test_a_step_that_is_cut_to_fit_gives_the_same_scores(engine_with, small_task, share):
    batch = small_task.batch(0, 8, 0)
    tokens = batch.inputs["input_ids"].numel()
    engine, device, said = engine_with(free_for(share * tokens))
    for _ in range(3):
        assert_equal(engine.score(batch, POINTS), plain_scores(small_task, batch))
    assert not engine.point_by_point
    assert bool(said) is (share < 4)
    assert len(said) <= 1
    assert max(device.forwards) <= max(share * tokens, 4 * tokens / 8)  # the trial is an eighth
    asked = device.asked
    engine.score(batch, POINTS)
    assert device.asked == asked


def test_a_step_that_fits_is_tried_once_and_not_cut(engine_with, small_task):
    batch = small_task.batch(0, 8, 0)
    engine, device, said = engine_with(10**9)
    tokens = batch.inputs["input_ids"].numel()
    assert all(map(torch.equal, engine.score(batch, POINTS), plain_scores(small_task, batch)))
    engine.score(batch, POINTS)
    trial = [4 * tokens // 8] * 3  # the last layer whole and in part, and the way that is chosen
    check = [tokens] * 4  # the points one by one
    assert device.forwards == [*trial, 4 * tokens, *check, 4 * tokens]
    assert not said


def test_a_users_bounds_are_kept(engine_with, small_task):
    batch = small_task.batch(0, 8, 0)
    tokens = batch.inputs["input_ids"].numel()
    engine, device, said = engine_with(10**9, probes_per_pass=2, micro_batch=3)
    assert_equal(engine.score(batch, POINTS), plain_scores(small_task, batch))
    assert max(device.forwards) == 2 * 3 * tokens // 8
    engine, device, said = engine_with(free_for(3 * tokens // 8), probes_per_pass=2, micro_batch=3)
    assert_equal(engine.score(batch, POINTS), plain_scores(small_task, batch))
    assert max(device.forwards) == 3 * tokens // 8
    assert "2 points and 3 examples" in said[0]
    assert "to 1 points and 3 examples at a time" in said[0]


def test_a_model_that_takes_points_one_by_one_is_cut_by_examples(engine_with, small_task):
    batch = small_task.batch(0, 8, 0)
    tokens = batch.inputs["input_ids"].numel()
    engine, device, _ = engine_with(free_for(tokens // 2))
    engine.point_by_point = engine._checked = True
    for _ in range(2):
        assert_equal(engine.score(batch, POINTS), plain_scores(small_task, batch))
    assert max(device.forwards[1:]) == tokens // 2


def test_the_model_as_it_stands_is_cut_too(engine_with, small_task):
    batch = small_task.batch(0, 8, 0)
    tokens = batch.inputs["input_ids"].numel()
    engine, device, _ = engine_with(free_for(tokens // 2))
    assert_equal(engine.score(batch, [STILL]), plain_scores(small_task, batch, [STILL]))
    assert device.forwards == [*[tokens // 8] * 3, tokens // 2, tokens // 2]


# Where memory runs out all the same


def running_out(engine, most):
    """Let forwards of more rows run out of memory."""
    original = engine._forward

    def forward(inputs, points, below=0, **options):
        if len(points) * len(inputs["input_ids"]) > most:
            raise torch.OutOfMemoryError
        return original(inputs, points, below, **options)

    engine._forward = forward


@pytest.mark.parametrize(
    ("most", "said_last"), [(16, "2 points and 8 examples"), (8, "1 points and 8 examples"), (1, "1 points and 1 ex")]
)
def test_running_out_halves_points_then_examples_and_is_remembered(small_task, most, said_last):
    batch, model, said = small_task.batch(0, 8, 0), tiny_model("roberta"), []
    engine = Local(model, weights_of(model), small_task.word_ids, say=said.append)
    running_out(engine, most)
    for _ in range(2):
        assert_equal(engine.score(batch, POINTS), plain_scores(small_task, batch))
    assert said_last in said[-1]
    assert not engine.point_by_point  # it is memory that was missing, not a model of its own kind
    assert len(said) == len(set(said))


def test_running_out_below_what_was_predicted_goes_on_from_there(engine_with, small_task):
    batch = small_task.batch(0, 8, 0)
    tokens = batch.inputs["input_ids"].numel()
    engine, _, said = engine_with(free_for(tokens))
    running_out(engine, 4)
    assert_equal(engine.score(batch, POINTS), plain_scores(small_task, batch))
    assert "to 1 points and 8 examples" in said[0]
    assert said[1:] == ["out of GPU memory; from now on 1 points and 4 examples at a time"]


def test_one_example_at_one_point_that_does_not_fit_is_an_error(small_task):
    model = tiny_model("roberta")
    engine = Local(model, weights_of(model), small_task.word_ids)
    running_out(engine, 0)
    with pytest.raises(InputError, match="does not hold one example at one point"):
        engine.score(small_task.batch(0, 2, 0), POINTS)


class Writes:
    """Writes a prompt's length, two prompts at a time at most."""

    def tokens(self, _model, prompts):
        if len(prompts) > 2:
            raise torch.OutOfMemoryError
        return [[len(prompt)] for prompt in prompts]


def test_running_out_while_texts_are_written_halves_the_prompts(small_task):
    model, said = tiny_model("roberta"), []
    engine = Local(model, weights_of(model), small_task.word_ids, say=said.append)
    prompts = [[5] * length for length in range(1, 6)]
    assert engine.write(prompts, [STILL], Writes()) == [[[1], [2], [3], [4], [5]]]
    assert said == ["out of GPU memory; from now on 1 points and 2 examples at a time"]
