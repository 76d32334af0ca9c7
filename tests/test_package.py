"""What a user gets from `pip install`: the wheel carries the recipes and works without the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


@pytest.mark.skipif(not (CHECKOUT / "pyproject.toml").exists(), reason="not a checkout")
def test_the_wheel_carries_the_recipes(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(CHECKOUT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = tmp_path.glob("sortk-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    names = {path.parent.name for path in (CHECKOUT / "recipes").glob("*/recipe.toml")}
    for name in names:
        command = [sys.executable, "-m", "sortk", "status", "--recipe", name]
        result = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path / "installed")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "prepare" in result.stdout and "missing" in result.stdout
