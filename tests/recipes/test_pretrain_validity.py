"""A megatron file may have been edited by hand: whatever value stands anywhere is a sentence, or harmless."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from recipes.pretrain import config, validity
from tests.plans import all_plans
from toolkit.emit.megatron_core import core_config, of_contract
from toolkit.errors import ToolkitError

WRONG = (None, True, -1, 0, 1, 0.5, 10**30, "x", "", [], {}, [1])
PLAN = all_plans()["dense"]


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from places(inner, (*path, key))


def check(core: Any) -> None:
    """What :func:`config.load` reads and the program checks; a plan that is read once."""
    strategy = PLAN.strategy
    read = msgspec.json.decode(json.dumps(core), type=config.CoreConfig)
    validity.check(PLAN, read, strategy.tp * strategy.pp * strategy.cp * strategy.dp)


def test_any_wrong_value_anywhere_is_refused_or_harmless() -> None:
    core = json.loads(json.dumps(core_config(PLAN)))
    check(core)
    for path in places(core):
        for value in WRONG:
            changed = copy.deepcopy(core)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            try:
                check(changed)
            except ToolkitError as error:
                assert all(problem.message for problem in error.problems), (path, value)
            except msgspec.MsgspecError:  # which the program says as it stands
                assert path[0] in ("training", "megatron_core") or len(path) == 1


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("transformer", "num_attention_heads", "8"),
        ("transformer", "num_layers", -2),
        ("parallel", "tensor_model_parallel_size", 1.5),
        ("model", "vocab_size", True),
        ("training", "sequence_length", 0),
    ],
)
def test_what_is_no_whole_number_is_named(section: str, key: str, value: Any) -> None:
    core = json.loads(json.dumps(core_config(PLAN)))
    core[section][key] = value
    with pytest.raises(ToolkitError, match=rf"{section}.{key} is "):
        check(core)


def test_whatever_the_contract_fixes_cannot_be_edited_in_the_megatron_file() -> None:
    """Else a checkpoint would go on under another learning rate, and call itself the same experiment."""
    core = json.loads(json.dumps(core_config(PLAN)))
    for section, values in of_contract(PLAN.contract).items():
        for key, value in values.items():
            assert core[section][key] == value
            for other in (value + 1, value * 2 + 1) if not isinstance(value, str) else ("linear", "constant"):
                changed = copy.deepcopy(core)
                changed[section][key] = other
                with pytest.raises(ToolkitError) as found:
                    check(changed)
                told = [problem.message for problem in found.value.problems]
                wanted = f"{section}.{key} is {other!r} in the megatron file, the plan's contract has {value}"
                assert wanted in told, told
            if section == "optimizer":
                changed = copy.deepcopy(core)
                del changed[section][key]
                with pytest.raises(ToolkitError, match=rf"{section}.{key} is absent"):
                    check(changed)
