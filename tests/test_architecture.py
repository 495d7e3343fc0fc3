"""Decisions of the architecture, enforced: who imports whom, what is heavy, what a formula may do."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "toolkit"

FOUNDATION = {"units", "gpu_counts", "gpu_ranges", "budgets", "model_sizes", "numeric", "errors", "equation"}
NOUNS = {
    "model",
    "cluster",
    "workload",
    "strategy",
    "estimates",
    "plan",
    "record",
    "finding",
    "recipe",
    "schedule",
    "programs",
    "batch_scaling",
    "calibration",
    "efficiency",
    "deepspeed_defaults",
    "megatron_shapes",
    "transformers_shapes",
    "pipeline_split",
    "resilience",
    "scaling_law",
    "whole_run",
    "context_parallel",
    "interval",
    "residuals",
}
MAY_IMPORT = {
    "decode": {"decode", *FOUNDATION, *NOUNS},
    "registry": {"registry", "decode", *FOUNDATION, *NOUNS},
    "estimate": {"estimate", *FOUNDATION, *NOUNS},
    "search": {"search", "estimate", *FOUNDATION, *NOUNS},
    "intervals": {"intervals", *FOUNDATION, *NOUNS},
    "validate": {"validate", "estimate", "search", "intervals", *FOUNDATION, *NOUNS},
    "calibrate": {"calibrate", "validate", "estimate", "intervals", *FOUNDATION, *NOUNS},
    "emit": {"emit", *FOUNDATION, *NOUNS},
    "check": {"check", "estimate", *FOUNDATION, *NOUNS},
    "report": {"report", *FOUNDATION, *NOUNS},
    "runtime": {"runtime", *FOUNDATION, *NOUNS},
    "verify": {"verify", "estimate", "emit", "runtime", *FOUNDATION, *NOUNS},
    "profile": {"profile", "estimate", "calibrate", "emit", "runtime", *FOUNDATION, *NOUNS},
}
HEAVY = {"torch", "transformers", "deepspeed", "pydantic", "matplotlib", "plotly", "accelerate", "yaml", "megatron"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def layer_of(name: str) -> str:
    """'toolkit.search.rank' -> 'search', 'toolkit.model' -> 'model'."""
    return (name.split(".") + [""])[1]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "toolkit":
                found |= {f"toolkit.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_layer_imports_only_what_lies_below_it(path: Path) -> None:
    layer = layer_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    names = {name for name in imports(path) if name.startswith("toolkit.")}
    # measured efficiency curves are tables that formulas read, kept as data files; a model asked for by its size
    # is a registered shape scaled to a count, which needs the formula of the count
    exempt = {
        "estimate": {"toolkit.registry.efficiency"},
        "profile": {"toolkit.registry.efficiency"},
        "registry": {"toolkit.estimate.parameters", "toolkit.estimate.scaling"},
    }
    used = {layer_of(name) for name in names - exempt.get(layer, set())}
    if layer in FOUNDATION:
        assert used <= FOUNDATION
    elif layer in NOUNS:
        assert used <= FOUNDATION | NOUNS | {"__version__"}
    elif layer in MAY_IMPORT:
        assert used <= MAY_IMPORT[layer] | {"__version__"}
    else:
        assert layer in {"cli", "__init__", "__main__"}, f"{path} belongs to no layer"


@pytest.mark.parametrize(
    "path", [p for p in modules() if layer_of(".".join(p.relative_to(ROOT).parts)) in MAY_IMPORT], ids=str
)
def test_formulas_and_emitters_touch_nothing(path: Path) -> None:
    """No printing, logging, environment or processes outside cli and runtime; no assert for user input."""
    layer = path.relative_to(PACKAGE).parts[0]
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if layer in {"estimate", "search", "validate", "emit", "decode"}:
        assert "print" not in names
        assert not imports(path) & {"logging", "subprocess", "os"}
    if layer != "runtime":
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def loaded_after(*argv: str) -> set[str]:
    code = (
        "import sys, json\n"
        "from toolkit.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as e:\n    assert not e.code, e.code\n"
        "print('\\n@@' + json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.rpartition("@@")[2]))


def test_help_imports_nothing_heavy() -> None:
    assert not loaded_after("--help") & (HEAVY | {"numpy", "rich", "msgspec"})


def test_planning_imports_no_framework() -> None:
    loaded = loaded_after("plan", "--params", "7B", "--gpus", "64")
    assert not loaded & HEAVY
    assert "numpy" in loaded  # the search did run


def test_emitting_a_plan_imports_no_framework(tmp_path: Path) -> None:
    loaded = loaded_after("plan", "--params", "7B", "--gpus", "64", "--out", str(tmp_path / "plan"))
    assert not loaded & HEAVY
    assert (tmp_path / "plan" / "plan.json").exists()


def test_evaluating_one_strategy_needs_no_numpy() -> None:
    assert "numpy" not in loaded_after(
        "estimate", "--params", "7B", "--gpus", "64", "--zero", "2", "--micro-batch", "1"
    )
