"""Tasks: templates, label words, data, k-shot sampling and encoding."""

from noback.tasks.data import Example, unlabelled
from noback.tasks.encoding import Batch, Candidates
from noback.tasks.given_rows import data_files
from noback.tasks.one_line import check_line, words_text
from noback.tasks.own import own_name
from noback.tasks.rows import ENDINGS, Row, ending_of
from noback.tasks.sampling import Drawn
from noback.tasks.spec import TaskSpec, load_spec, spec_of, task_names
from noback.tasks.stream import check_data, is_data_file, lines_of, rows_from, stream_rows
from noback.tasks.task import Question, Task, draw_examples, read_split, spec_for, with_columns

__all__ = [
    "Batch",
    "Candidates",
    "Drawn",
    "ENDINGS",
    "Example",
    "Question",
    "Row",
    "Task",
    "TaskSpec",
    "check_data",
    "check_line",
    "data_files",
    "draw_examples",
    "ending_of",
    "is_data_file",
    "lines_of",
    "load_spec",
    "own_name",
    "read_split",
    "rows_from",
    "spec_for",
    "spec_of",
    "stream_rows",
    "task_names",
    "unlabelled",
    "with_columns",
    "words_text",
]
