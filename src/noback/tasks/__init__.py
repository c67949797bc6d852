"""Tasks: templates, label words, data, k-shot sampling and encoding."""

from noback.tasks.encoding import Batch, Candidates
from noback.tasks.sampling import Drawn
from noback.tasks.spec import TaskSpec, load_spec, spec_of, task_names
from noback.tasks.task import Question, Task, draw_examples, read_split, spec_for, with_columns

__all__ = [
    "Batch",
    "Candidates",
    "Drawn",
    "Question",
    "Task",
    "TaskSpec",
    "draw_examples",
    "load_spec",
    "read_split",
    "spec_for",
    "spec_of",
    "task_names",
    "with_columns",
]
