"""Tasks: templates, label words, data, k-shot sampling and encoding."""

from noback.tasks.encoding import Batch
from noback.tasks.spec import TaskSpec, load_spec, task_names
from noback.tasks.task import Task, read_split, spec_for

__all__ = ["Batch", "Task", "TaskSpec", "load_spec", "read_split", "spec_for", "task_names"]
