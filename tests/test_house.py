"""The house keeps its shape: small classes, no hidden state, no question after an option's class."""

import ast
import re
import typing
from pathlib import Path

import pytest

from noback.adapters import AnyAdapter
from noback.directions import AnyNoise
from noback.engines.options import AnyEngine
from noback.estimators import AnyEstimator
from noback.objectives import AnyObjective
from noback.readouts import AnyReadout
from noback.rules import AnyRule

PACKAGE = Path(__file__).parent.parent / "src" / "noback"
FILES = sorted(PACKAGE.rglob("*.py"))
UNIONS = (AnyAdapter, AnyNoise, AnyEngine, AnyEstimator, AnyObjective, AnyReadout, AnyRule)
KINDS = {kind.__name__ for union in UNIONS for kind in typing.get_args(union) or (union,)}


def classes():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield pytest.param(node, id=f"{path.stem}.{node.name}")


@pytest.mark.parametrize("node", list(classes()))
def test_a_class_is_small_and_rebinds_little(node):
    assert node.end_lineno - node.lineno < 200
    rebound = {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name != "__init__"
        for statement in ast.walk(method)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for part in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        for target in ast.walk(part)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    assert len(rebound) <= 12


def test_no_code_asks_for_the_class_of_an_option():
    """A capability is an attribute of the object; `isinstance` would not know the next kind."""
    asked = [
        f"{path.name}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if "isinstance(" in line and KINDS & set(re.findall(r"\w+", line.split("isinstance(", 1)[1]))
    ]
    assert not asked


def test_a_cell_of_the_architecture_page_is_short():
    rows = [line for line in (PACKAGE.parent.parent / "ARCHITECTURE.md").read_text().splitlines() if line[:1] == "|"]
    assert len(rows) > 20
    assert all(len(cell.strip()) <= 120 for row in rows for cell in row.strip("|").split("|"))


def test_the_architecture_page_names_files_that_are_there():
    page = (PACKAGE.parent.parent / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", page))
    assert len(named) > 25
    bare = {path.name for path in FILES}
    assert not {name for name in named if not (PACKAGE / name).is_file() and name.split("/")[-1] not in bare}
