"""Predictions: texts and rows of any source, answered in batches as they come, and files of answers."""

from noback.predictions.answering import Answer, answered
from noback.predictions.asking import Asked, asked_data, asked_texts
from noback.predictions.in_bulk import Predicted, Source, Target, file_source, predict_rows, stdin_source
from noback.predictions.writing import Sink, check_place, opened

__all__ = [
    "Answer",
    "Asked",
    "Predicted",
    "Sink",
    "Source",
    "Target",
    "answered",
    "asked_data",
    "asked_texts",
    "check_place",
    "file_source",
    "opened",
    "predict_rows",
    "stdin_source",
]
