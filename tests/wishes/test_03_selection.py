"""Point 3: a tiny validation set does not choose by luck; the loss decides where answers cannot, then the later one."""

import pytest

from noback.paired import PerExample
from noback.selecting import Candidate, is_better


def candidate(right: int, loss: float, examples: int = 32) -> Candidate:
    """An evaluation with so many right answers, the first ones, of a set."""
    losses = [loss] * examples
    return Candidate(loss, PerExample([1.0] * right + [0.0] * (examples - right), losses, losses))


def test_a_lucky_accuracy_does_not_outdo_a_lower_loss():
    lucky, sound = candidate(right=20, loss=0.60), candidate(right=18, loss=0.50)
    assert is_better(sound, lucky)
    assert not is_better(lucky, sound)


def test_an_accuracy_that_a_paired_test_can_tell_decides_whatever_the_loss():
    before, after = candidate(right=16, loss=0.50), candidate(right=26, loss=0.60)
    assert is_better(after, before)
    assert not is_better(before, after)


@pytest.mark.parametrize("right", [17, 18, 19])
def test_of_equal_losses_the_later_is_taken(right):
    assert is_better(candidate(right, loss=0.5), candidate(right=18, loss=0.5))
