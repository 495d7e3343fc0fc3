"""What a run needs of the machine that it starts on, looked for before torch is imported: packages and files."""

from __future__ import annotations

import importlib.metadata

from recipes.finetune import documents, fitting, preferences
from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan
from toolkit.registry.files import expanded, is_there

PACKAGES = {"lora": ("peft",), "qlora": ("peft", "bitsandbytes")}  # beside those of every run
PAGED = ("adamw_paged", "adamw_8bit", "adamw_8bit_paged")  # optimizers of bitsandbytes


def check(problems: Problems, plan: Plan) -> None:
    """Add what is missing."""
    _packages(problems, plan)
    _files(problems, plan)


def _packages(problems: Problems, plan: Plan) -> None:
    contract, framework = plan.contract, plan.strategy.framework
    needed = ["torch", "transformers", "accelerate", *(["deepspeed"] if framework == "deepspeed" else [])]
    missing = [name for name in needed if not _installed(name)]
    if missing:
        problems.add(f"not installed: {', '.join(missing)}", "pip install '.[train]'")
    needed = [*PACKAGES.get(contract.method, ()), *(["bitsandbytes"] if contract.optimizer in PAGED else [])]
    missing = sorted(name for name in set(needed) if not _installed(name))
    if missing and not (
        plan.cluster.accelerator.is_cpu and missing == ["bitsandbytes"]
    ):  # of no use on CPUs, which is said already
        what = f"method {contract.method}" if contract.method != "full" else f"optimizer {contract.optimizer}"
        extra = "peft" if missing == ["peft"] else "qlora"
        problems.add(f"{what} needs {' and '.join(missing)}, not installed", f"pip install '.[{extra}]'")

    if contract.objective == "dpo" and not _installed("trl"):
        problems.add("objective dpo needs trl, not installed", "pip install '.[dpo]'")


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _files(problems: Problems, plan: Plan) -> None:
    contract = plan.contract
    try:
        if contract.dataset:
            (preferences if contract.objective == "dpo" else documents).check_file(contract.dataset)
    except ToolkitError as error:
        problems.absorb(error)
    for name in ("model", "tokenizer"):
        value = getattr(contract, name)
        if value.startswith((".", "~", "/")) and not is_there(expanded(value)):
            problems.add(
                f"{name} {value} does not exist on this machine", "give a folder with its files, or a hub name"
            )
    model = expanded(contract.model)
    if (
        contract.model
        and is_there(model)
        and model.is_dir()
        and "/" in contract.model
        and not (model / "config.json").is_file()
    ):
        problems.add(f"model {contract.model} is a folder without config.json", "give the folder of a saved model")
    for problem in fitting.differences(plan, model):
        problems.add(problem.message, problem.remedy)
