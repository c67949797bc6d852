"""Readouts: rows and biases on top of the label words' own, fitted to what the decoder is given. A kind is a file."""

from noback.readouts.auto import AutoReadout
from noback.readouts.exact import ExactReadout
from noback.readouts.fitting import Fit, Given
from noback.readouts.rows import LabelRows, Shape

AnyReadout = AutoReadout | ExactReadout

__all__ = ["AnyReadout", "AutoReadout", "ExactReadout", "Fit", "Given", "LabelRows", "Shape"]
