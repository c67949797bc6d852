"""Point 10: a disk that refuses any call, or a death at any call, costs nothing but time."""

from tests.hostile.injecting import fuzz_failures, fuzz_kills


def test_a_call_that_the_disk_refuses_costs_nothing_but_a_resume(tiny_folder, data_folder, tmp_path):
    """A sample of the calls; `make fuzz` tries each."""
    outcomes = fuzz_failures(tiny_folder, data_folder, tmp_path, places=[1, 3, 8, 17, 26, 41, 60, 78, 95, 120, 140])
    assert outcomes["stopped with a sentence"] > 3


def test_runs_killed_at_calls_drawn_by_chance_end_on_the_same_bits(tiny_folder, data_folder, tmp_path):
    assert fuzz_kills(tiny_folder, data_folder, tmp_path, seed=3, kills=6)["killed"] >= 6
