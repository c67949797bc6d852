"""A run whose written answers a reward judges."""

from noback import Reward, RunConfig, train
from tests.conftest import write_rows


def length(_row, text, _right):
    return float(len(text))


def rewarded_run(model, folder):
    """A finished run of one step."""
    task = folder / "task.toml"
    task.write_text('name = "own"\nprompt = "{text}"\nlabel = ""\nmax_new_tokens = 2\n')
    data = write_rows(folder / "rows.jsonl", [{"text": f"say {number}"} for number in range(12)])
    objective = Reward(f"{__name__}:length")
    train(
        RunConfig(model=str(model), task=str(task), data=str(data), objective=objective, steps=1, batch=2),
        folder / "rewarded",
    )
    return folder / "rewarded"
