"""plan.json read back: what was written, and whatever a hand may have made of it."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plans import all_plans
from toolkit import plan as plans
from toolkit.cli.emit import _require_rules
from toolkit.emit.bundle import bundle
from toolkit.errors import ToolkitError
from toolkit.workload import WORDS

PLANS = {"deepspeed": all_plans()["zero3"], "megatron": all_plans()["dense"]}
WRONG = (None, True, -1, 0, 1.5, 10**30, 2**63 - 1, 1e308, -(10**12), "x", [], {}, [[1]], "9" * 5000)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    if isinstance(value, list) and value:
        yield from paths(value[0], (*path, 0))


def edited(document: Any, path: tuple[str | int, ...], value: Any) -> str:
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(changed)


@pytest.mark.parametrize("which", PLANS)
def test_a_plan_comes_back_as_it_was(which: str) -> None:
    assert plans.load(plans.dump(PLANS[which])) == PLANS[which]


@pytest.mark.parametrize("which", PLANS)
def test_any_wrong_value_anywhere_is_refused_or_harmless(which: str) -> None:
    document = plans.to_json(PLANS[which])
    places = [path for path in paths(document) if path]
    assert len(places) > 200
    dice = random.Random(7)
    for path in places:
        for value in dice.sample(WRONG, 4):
            try:
                plan = plans.load(edited(document, path, value))
                bundle(plan, "/tmp/plan")
                _require_rules(plan)
            except ToolkitError as error:
                assert all(problem.message for problem in error.problems), (path, value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema", True, "schema True"),
        ("schema", 2, "schema 2"),
        ("verdict", "x", "verdict is 'x'"),
        ("workload.total_tokens", -1, "workload.total_tokens is -1"),
        ("workload.flash_generation", 9, "workload.flash_generation is 9"),
        *((f"workload.{name}", "x", f"workload.{name} is 'x'") for name in (*WORDS, "recompute_modules")),
        ("contract.learning_rate", -1, "contract.learning_rate is -1"),
        ("contract.seed", 2**63 - 1, "contract.seed is"),
        ("contract.epochs", 0, "contract.epochs is 0"),
        ("contract.epochs", 1e300, "contract.epochs is 1e+300"),
        ("contract.total_tokens", 1e30, "contract.total_tokens is 1e+30"),
        ("contract.learning_rate", 1e308, "contract.learning_rate is 1e+308"),
        ("model.norm_epsilon", -1.0, "model.norm_epsilon is -1.0"),
        ("model.rope_theta", -1, "model.rope_theta is -1.0"),
        ("model.initializer_range", -0.1, "model.initializer_range is -0.1"),
        ("total_parameters", -1, "total_parameters is -1"),
        ("contracts", {}, "unknown field `contracts`"),
        ("contract.sequence_length", 0, "contract.sequence_length is 0"),
        ("strategy.zero_stage", 10**11, "strategy.zero_stage is 100000000000"),
        ("strategy.dp", 0, "strategy.dp is 0"),
        ("cluster.nodes", 2**63 - 1, "cluster.nodes is"),
        ("model.num_hidden_layers", 2**63 - 1, "model.num_hidden_layers is"),
        ("model.num_key_value_heads", -1, "model.num_key_value_heads is -1"),
        ("cluster.site.time_limit", "9" * 5000, "time limit '9999"),
    ],
)
@pytest.mark.parametrize("which", PLANS)
def test_values_that_no_job_has_are_named(which: str, path: str, value: Any, said: str) -> None:
    document = plans.to_json(PLANS[which])
    with pytest.raises(ToolkitError) as caught:
        bundle(plans.load(edited(document, tuple(path.split(".")), value)), "/tmp/plan")
    assert said in str(caught.value)


def test_all_of_them_are_named_at_once() -> None:
    document = plans.to_json(PLANS["deepspeed"])
    document["contract"] |= {"seed": -1, "epochs": 0.0}
    document["strategy"] |= {"zero_stage": 9}
    with pytest.raises(ToolkitError) as caught:
        plans.load(json.dumps(document))
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "[" * 100_000, '{"strategy": {}}', "\xff"])
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(ToolkitError):
        plans.load(text)
    with pytest.raises(ToolkitError):
        plans.load(text.encode("latin-1"))


@pytest.mark.parametrize(
    "name", ["cp_method", "recompute_layers", "schedule", "vocabulary", "tp_overlap", "dp_overlap"]
)
def test_a_plan_of_before_a_field_has_its_default(name: str) -> None:
    one = all_plans()["long"]
    values = json.loads(plans.dump(one))
    assert name in values["strategy"]
    del values["strategy"][name]
    assert plans.load(json.dumps(values)) == one


@pytest.mark.parametrize(
    ("name", "value"), [("cp_method", "ring"), ("recompute_layers", -1), ("recompute_layers", "12")]
)
def test_words_and_numbers_of_recomputation_and_context_are_checked(name: str, value: object) -> None:
    values = json.loads(plans.dump(all_plans()["long"]))
    values["strategy"][name] = value
    with pytest.raises(ToolkitError, match=name):
        plans.load(json.dumps(values))
