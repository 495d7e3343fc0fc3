"""The committed files are what the planner and the emitters make today."""

from tests import golden_files


def test_committed_files_are_not_stale() -> None:
    diffs = golden_files.stale()
    assert not diffs, "run: make golden, and read the differences\n" + "\n".join(diffs)


def test_every_recipe_has_files() -> None:
    recipes = golden_files.shipped_recipes()
    assert "tiny" in recipes
    assert len(recipes) > 15
    for recipe in recipes:
        if not golden_files.targets(recipe):
            continue  # a job of more nodes than are committed
        assert list((golden_files.ROOT / "slurm").glob(f"{recipe}__*.sbatch")), recipe
