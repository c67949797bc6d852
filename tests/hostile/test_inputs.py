"""What a person, or a person's enemy, gives: accepted, or refused in a sentence; never a traceback."""

import pytest

from tests.hostile.inputs import ATTACKS, fuzz_inputs


@pytest.fixture(scope="module")
def outcomes():
    return fuzz_inputs(seed=7, count=150)


@pytest.mark.parametrize("name", ATTACKS)
def test_random_input_is_accepted_or_refused_in_a_sentence(name, outcomes):
    assert {outcome for outcome in outcomes if outcome.startswith(name)} == {f"{name} accepted", f"{name} refused"}


def test_the_same_seed_gives_the_same_inputs():
    assert fuzz_inputs(seed=3, count=5) == fuzz_inputs(seed=3, count=5)
