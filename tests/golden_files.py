"""Every committed file that is generated: ``python -m tests.golden_files`` shows what is stale, ``--write`` mends it.

``ds_configs/`` and ``slurm/`` are what the planner and the emitters make of each recipe on a few named
clusters; ``tests/golden/`` is what the emitters make of the hand-built plans in tests/plans.py.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests import plans, recipe_table, residual_table, rules_table, worked_example
from toolkit import plan as plan_module
from toolkit.emit import accelerate, deepspeed, megatron, script, slurm
from toolkit.emit.bundle import bundle, to_json
from toolkit.gpu_counts import parse_gpus
from toolkit.plan import Plan
from toolkit.registry.recipes import load_recipe

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ds_configs", "slurm", "tests/golden")

# recipe: (cluster, GPUs, what is pinned); every other one is planned for its reference
TARGETS: dict[str, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "tiny": (
        ("local-cpu", "2", {"framework": "deepspeed", "zero_stage": 2}),
        ("local-cpu", "2x1", {"framework": "deepspeed", "zero_stage": 2}),
        ("dgx-h100", "8", {"framework": "deepspeed"}),
        ("aws-p4d", "8", {"framework": "deepspeed"}),
    ),
    "tiny-pretrain": (
        ("local-cpu", "2", {}),
        ("local-cpu", "2x1", {"pp": 2}),
        ("dgx-h100", "8", {"tp": 2}),
        ("aws-p4d", "8", {}),
    ),
}
MOST_NODES = 16  # scripts for larger jobs are not committed: `toolkit plan --recipe NAME --out DIR` writes them
ESTIMATES = ("memory", "host_memory", "communication", "step", "resilience")
INTERVALS = ("step_interval80", "memory_interval80")
DIGITS = 6


def shipped_recipes() -> list[str]:
    """Names of the recipes in this repository; a user's own are not generated for."""
    return [found.recipe.name for found in recipe_table.shipped()]


def targets(name: str) -> tuple[tuple[str, str, dict[str, Any]], ...]:
    """What is planned for a recipe; nothing where its reference is a larger job than those that are committed."""
    if name in TARGETS:
        return TARGETS[name]
    cluster, gpus = load_recipe(name).reference.split()
    return ((cluster, gpus, {}),) if parse_gpus(gpus).nodes <= MOST_NODES else ()


def planned(recipe: str, cluster: str, gpus: str, pinned: dict[str, Any]) -> Plan:
    """The first plan for a recipe, its estimates rounded so that another machine's last bit is no difference."""
    from toolkit.cli.plan import plan
    from toolkit.cli.request import build

    ranked, _ = plan(build({"recipe": recipe, "cluster": cluster, "gpus": gpus} | pinned), 1)
    assert ranked, f"no plan for {recipe} on {cluster} with {gpus}"
    best = ranked[0]
    rounded = {
        name: msgspec.structs.replace(
            part, **{k: _round(v) for k, v in msgspec.structs.asdict(part).items() if type(v) is float}
        )
        for name in ESTIMATES
        if (part := getattr(best, name)) is not None
    }
    for name in INTERVALS:
        if (found := getattr(best, name)) is not None:
            rounded[name] = msgspec.structs.replace(found, low=_round(found.low), high=_round(found.high))
    return msgspec.structs.replace(best, memory_limit_bytes=_round(best.memory_limit_bytes), **rounded)


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def of_recipes() -> dict[str, str]:
    """``ds_configs/`` and ``slurm/``; the scripts are submitted from the root of the repository."""
    texts = {}
    for recipe in shipped_recipes():
        for cluster, gpus, pinned in targets(recipe):
            plan = planned(recipe, cluster, gpus, pinned)
            stem = f"{recipe}__{plan.cluster.nodes}x{plan.cluster.gpus_per_node}-{cluster}"
            files = script.Files(directory=".", plan=f"slurm/plans/{stem}.json", output_directory=f"runs/{stem}")
            if plan.strategy.framework == "deepspeed":
                files = msgspec.structs.replace(files, deepspeed=f"ds_configs/{stem}.json")
                texts[files.deepspeed] = to_json(deepspeed.config(plan))
                texts[f"ds_configs/{stem}.auto.json"] = to_json(deepspeed.auto_twin(plan))
            if plan.strategy.framework == "megatron":
                files = msgspec.structs.replace(files, megatron=f"slurm/plans/{stem}.megatron_core.json")
                texts[files.megatron] = to_json(megatron.core_config(plan))
            texts[files.plan] = plan_module.dump(plan)
            texts[f"slurm/{stem}.sbatch"] = slurm.batch_script(plan, files)
    return texts


def of_hand_built_plans() -> dict[str, str]:
    """``tests/golden/``: one example of each kind of file."""
    all_plans = plans.all_plans()
    texts = {f"tiny/{name}": text for name, text in bundle(all_plans["tiny"], "/plans/tiny").items()}
    for name in ("zero2-fp16", "zero3-offload", "zero3-hpz"):
        texts[f"{name}.ds_config.json"] = to_json(deepspeed.config(all_plans[name]))
    for name in ("ddp", "fsdp-hybrid", "zero3"):
        texts[f"{name}.accelerate.yaml"] = accelerate.text(all_plans[name])
    for name in ("interleaved", "experts", "latent"):
        texts[f"{name}.megatron_core.json"] = to_json(megatron.core_config(all_plans[name]))
        texts[f"{name}.megatron_args.txt"] = megatron.arguments_text(all_plans[name])
    site = {
        "container_runtime": "pyxis",
        "container_image": "docker://nvcr.io#nvidia/pytorch:25.01-py3",
        "container_mounts": ("/lustre:/lustre",),
        "environment": {"NCCL_DEBUG": "WARN"},
        "gpu_request": "gres",
        "gpu_type": "h100",
        "modules": ("slurm", "cuda/12.8"),
        "network_interface": "ib0",
    }
    dense = all_plans["dense"]
    in_container = msgspec.structs.replace(dense, cluster=plans.with_site(dense.cluster, **site))
    texts["dense-pyxis.sbatch"] = slurm.batch_script(in_container, script.files_of(dense, "/lustre/plans/70b"))
    return {f"tests/golden/{name}": text for name, text in texts.items()}


def generated() -> dict[str, str]:
    """Path from the root of the repository: text."""
    return of_recipes() | of_hand_built_plans()


def committed() -> set[str]:
    """What lies in the folders, read-me files left out."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if path.name != "README.md"}


def stale() -> list[str]:
    """Unified diffs between what is committed and what would be written."""
    wanted, diffs = generated(), []
    for name in sorted(wanted.keys() | committed()):
        path = ROOT / name
        before = path.read_bytes().decode().splitlines(keepends=True) if path.is_file() else []
        after = wanted.get(name, "").splitlines(keepends=True)
        if before != after:
            diffs.append("".join(difflib.unified_diff(before, after, f"committed {name}", f"generated {name}")))
    return diffs


def write() -> list[str]:
    """Write what is wanted and remove the rest; names of what changed."""
    changed = [str(residual_table.TABLE.relative_to(ROOT))] if residual_table.write() else []
    wanted = generated()
    before = worked_example.MATHS.read_text()
    after = worked_example.rendered(before)
    if before != after:
        worked_example.MATHS.write_text(after)
        changed.append(str(worked_example.MATHS.relative_to(ROOT)))
    if rules_table.write():
        changed.append(str(rules_table.PAGE.relative_to(ROOT)))
    if recipe_table.write():
        changed.append(str(recipe_table.README.relative_to(ROOT)))
    for name in sorted(committed() - wanted.keys()):
        (ROOT / name).unlink()
        changed.append(name)
    for name, text in sorted(wanted.items()):
        path = ROOT / name
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            path.chmod(0o755 if name.endswith((".sh", ".sbatch")) else 0o644)
            changed.append(name)
    return changed


def main(arguments: list[str]) -> int:
    """``--write`` rewrites; without it the diffs are printed and the exit code says whether there are any."""
    if arguments == ["--write"]:
        print("\n".join(write()) or "nothing has changed")
        return 0
    diffs = stale()
    print("\n".join(diffs) or "nothing is stale")
    return 1 if diffs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
