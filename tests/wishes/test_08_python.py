"""Wish 8: Python as people write it: names on Tab, keywords, rows in memory, loaded models, results to work with."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import noback

ROOT = Path(__file__).parents[2]


def test_dir_and_tab_show_the_public_names_and_nothing_else():
    code = "import noback; names = dir(noback); print(*names)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(noback.__all__) == {name for name in names if not name.startswith("_")}
    assert {"train", "RunConfig", "MeZO", "CurvatureWeighted", "__version__"} <= set(names)


def test_a_type_checker_sees_each_public_name_and_no_other():
    tree = ast.parse((ROOT / "src" / "noback" / "__init__.py").read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {name.asname for node in guarded[0].body for name in node.names}
    assert seen == set(noback.__all__)
    assert not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def test_the_package_ships_its_types():
    assert (Path(noback.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        noback.trian  # noqa: B018
