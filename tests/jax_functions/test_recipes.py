"""The recipes in `examples/jax/recipes`: each trains under a plan what it trains alone."""

import runpy
from pathlib import Path
from typing import Any

import jax
import pytest

RECIPES = sorted((Path(__file__).parents[2] / "examples" / "jax" / "recipes").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_as_it_does_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has its devices already. A recipe starts others without the flags of this one."""
    assert len(jax.devices()) == 8
    monkeypatch.setattr(jax.config, "update", lambda *args: None)
    monkeypatch.delenv("XLA_FLAGS")
    try:
        recipe: dict[str, Any] = runpy.run_path(str(path))
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    assert recipe["main"]() == pytest.approx(recipe["alone"](), abs=1e-4)


def test_every_recipe_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "jax.md").read_text("utf-8")
    assert [path.name for path in RECIPES if f"examples/jax/recipes/{path.name}" not in page] == []
