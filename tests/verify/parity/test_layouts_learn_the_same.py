"""Real workers learn what one process learns, on every layout: the proof that a recipe may move to another cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.verify.parity.experiments import EXPERTS
from toolkit.cli.parity import plans_of
from toolkit.plan import Plan
from toolkit.strategy import Strategy
from toolkit.verify.parity.run import pair
from toolkit.verify.parity.start import start
from toolkit.verify.parity.traces import Run

STEPS = 3
TIED = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 260,
    "tie_word_embeddings": True,
}
# name of the model (or the recipe's own), recipe, layouts
PAIRS = [
    *(("", "tiny", layout) for layout in ("ddp2", "zero0", "zero1", "zero2", "zero3", "fsdp2", "lora")),
    *(("", "tiny-pretrain", layout) for layout in ("tp2", "pp2", "tp2+sp", "cp2", "zero1", "tp2+pp2")),
    ("experts", "tiny-pretrain", "ep2"),
    ("experts", "tiny-pretrain", "ga2"),  # balanced over sequences, so the batch may be cut as it likes
    ("tied", "tiny-pretrain", "pp2"),
    ("lengths", "tiny", "ga4"),
]


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plan of a layout and the reference run, which layouts of one contract share."""
    folder = tmp_path_factory.mktemp("parity")
    for name, config in (("experts", EXPERTS), ("tied", TIED)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    words = ["a", "sentence", "of", "some", "length", "and", "no", "other"]
    rows = [{"text": " ".join(words[: 1 + number % len(words)])} for number in range(80)]
    (folder / "lengths.jsonl").write_text("\n".join(map(json.dumps, rows)))
    references: dict[str, Run] = {}

    def get(model: str, recipe: str, layout: str) -> tuple[Any, Run]:
        options: dict[str, Any] = {"cluster": "local-cpu", "sequence_length": 32, "global_batch": 8}
        if model == "lengths":
            options |= {"dataset": str(folder / "lengths.jsonl"), "packing": False}
        elif model:
            options["model"] = str(folder / model)
        reference, plans = plans_of(recipe, layout, options)
        key = f"{model} {recipe} {reference.contract.method}"
        if key not in references:
            references[key] = start(reference, folder / f"reference-{len(references)}", STEPS, 300.0)
        return plans[layout], references[key]

    return get


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("model", "recipe", "layout"), PAIRS, ids=lambda part: part or "own")
def test_a_layout_learns_what_one_process_learns(
    model: str, recipe: str, layout: str, experiments: Any, tmp_path: Path
) -> None:
    plan, one = experiments(model, recipe, layout)
    other = start(plan, tmp_path, STEPS, 300.0)
    found = pair(plan, one, other)
    assert found["verdict"] == "pass", found
    assert found["steps"] == STEPS and set(found["checks"].values()) == {"ok"} and found["cause"] == ""
    assert 0.0 <= found["closest"] <= 1.0 and found["tolerance"]["weights"] < 1.0e-5
    assert len(other.ranks) == plan.cluster.num_gpus and len(one.ranks) == 1  # not the reference with itself
    differs = found["max_abs_error"]["weights"] > 0.0 or found["max_abs_error"]["gradients"] > 0.0
    assert differs or layout in ("ddp2", "lora")  # both DDP on two ranks: a sum of two is the same in either order
    if model == "tied":
        assert other.ranks[0]["tied"]
    if model == "lengths":
        assert len({count for _, count in other.micro_batches(1)}) > 1


def test_every_layout_that_the_toolkit_promises_is_compared() -> None:
    promised = {
        "tiny": {"zero0", "zero1", "zero2", "zero3", "fsdp2"},
        "tiny-pretrain": {"tp2", "pp2", "tp2+sp", "cp2", "ep2", "tp2+pp2"},
    }
    for recipe, layouts in promised.items():
        assert layouts <= {layout for _, name, layout in PAIRS if name == recipe}


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_balancing_over_other_micro_batches_is_named(experiments: Any, tmp_path: Path) -> None:
    """No fault of a program: balanced over micro-batches, the loss of experts depends on how the batch is cut."""
    plan, _ = experiments("experts", "tiny-pretrain", "ga2")
    reference = msgspec.structs.replace(plan, strategy=_whole(plan))
    one, other = (
        start(_balanced_over_micro_batches(each), tmp_path / str(n), 1, 300.0)
        for n, each in enumerate((reference, plan))
    )
    found = pair(plan, one, other)
    assert found["verdict"] == "fail" and "balances the load" in found["cause"], found


def _whole(plan: Plan) -> Strategy:
    batch = plan.contract.global_batch_size
    return msgspec.structs.replace(plan.strategy, micro_batch_size=batch, gradient_accumulation_steps=1)


def _balanced_over_micro_batches(plan: Plan) -> Plan:
    contract = msgspec.structs.replace(plan.contract, expert_balance="micro_batch")
    return msgspec.structs.replace(plan, contract=contract)
