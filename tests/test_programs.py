"""No setting of a contract is silently ignored: the program that runs it reads it, or it is refused."""

import ast
from pathlib import Path

import msgspec
import pytest

from tests import finetune_runs
from toolkit import plan as plans
from toolkit.errors import ToolkitError
from toolkit.programs import UNFOLLOWED, unfollowed
from toolkit.recipe import Contract

ROOT = Path(__file__).resolve().parent.parent
FIELDS = tuple(field.name for field in msgspec.structs.fields(Contract))
# what both programs run through, and what writes the files that each follows
SHARED = ("recipes/*.py", "toolkit/recipe.py", "toolkit/schedule.py")
SOURCES = {
    "finetune": (*SHARED, "recipes/finetune/*.py", "toolkit/emit/deepspeed.py"),
    "pretrain": (
        *SHARED,
        "recipes/pretrain/**/*.py",
        "toolkit/emit/megatron_core.py",
        "toolkit/emit/megatron_model.py",
    ),
}
# read from the workload, which the emitters require to agree with the contract (refusals.require_layout)
BY_WORKLOAD = {"method", "precision", "optimizer"}


def settings_read(program: str) -> set[str]:
    """Attributes of a contract that the sources of a program take."""
    found = set()
    for pattern in SOURCES[program]:
        for path in ROOT.glob(pattern):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in FIELDS:
                    owner = node.value
                    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                    if name in ("contract", "settings"):
                        found.add(node.attr)
    return found


@pytest.mark.parametrize("program", SOURCES)
def test_every_setting_is_read_by_the_program_or_refused(program: str) -> None:
    read = settings_read(program) | (BY_WORKLOAD if program == "pretrain" else set())
    ignored = set(FIELDS) - read - set(UNFOLLOWED[program])
    assert not ignored, f"{program} ignores {', '.join(sorted(ignored))}: follow it, or say so in toolkit/programs.py"


@pytest.mark.parametrize("program", SOURCES)
def test_nothing_is_refused_that_the_contract_does_not_set(program: str) -> None:
    assert list(unfollowed(program, Contract())) == []


@pytest.mark.parametrize(("program", "name"), [(p, name) for p, names in UNFOLLOWED.items() for name in names])
def test_what_a_program_does_not_follow_is_a_sentence(program: str, name: str) -> None:
    value = getattr(Contract(), name)
    other = not value if isinstance(value, bool) else value + ("x" if isinstance(value, str) else 1)
    contract = msgspec.structs.replace(Contract(), **{name: other})
    (problem,) = unfollowed(program, contract)
    assert name in problem.message and UNFOLLOWED[program][name] in problem.message


def test_a_program_refuses_an_edited_plan_with_such_a_setting() -> None:
    plan = msgspec.structs.replace(finetune_runs.tiny_plan(), program="pretrain")
    edited = msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, packing=False))
    with pytest.raises(ToolkitError, match="packing is False, and the pretrain program does not follow it"):
        plans.load(plans.dump(edited))


def test_a_plan_whose_model_does_not_have_the_contracts_rotary_base_is_refused() -> None:
    plan = finetune_runs.tiny_plan()
    edited = msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, rope_theta=5e6))
    with pytest.raises(ToolkitError, match="rope_theta is 5000000"):
        plans.load(plans.dump(edited))
