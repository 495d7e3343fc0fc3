"""Every fault of the kind that is known from other projects, put into the real programs, is found and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.verify.parity.faulty import FINETUNE, PRETRAIN
from toolkit.cli.parity import plans_of
from toolkit.plan import Plan
from toolkit.verify.parity.run import pair, refused
from toolkit.verify.parity.start import Refused, start
from toolkit.verify.parity.traces import Run

SMALL = {"cluster": "local-cpu", "sequence_length": 32, "global_batch": 8}
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 260,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
# fault: (recipe, layout, quantity that fails first, words that name the cause)
FAULTS = {
    "mean_of_means": ("tiny", "ga4", "gradients", "mean of means"),
    "logged_by_one_rank": ("tiny", "ddp2", "logged_loss", "rank 0 alone"),
    "same_samples": ("tiny", "ddp2", None, "read by several ranks"),
    "tail_dropped": ("tiny", "ddp2", None, "cut to a multiple"),
    "summed_gradients": ("tiny", "ddp2", "gradients", "2 data-parallel ranks: they are summed"),
    "no_reduction": ("tiny", "ddp2", "gradients", "not reduced"),
    "rate_times_ranks": ("tiny", "ddp2", "learning_rate", "scaled by the number of ranks"),
    "batch_norm": ("tiny", "ddp2", None, "SyncBatchNorm"),
    "rest_dropped": ("tiny", "ga4", None, "optimizer steps"),
    "divided_by_accumulation_twice": ("tiny", "zero1+ga2", "gradients", "divided twice"),
    "local_norm": ("tiny", "fsdp2", "gradient_norm", "local norm"),
    "not_clipped": ("tiny", "ddp2", "weights", "not clipped"),
    "decay_on_norms": ("tiny", "ddp2", "weights", "norms and biases too"),
    "bf16_reduction": ("tiny", "ddp2", "gradients", "in bf16"),
    "no_master_weights": ("tiny", "ddp2", "weights", "master weights"),
    "scheduler_by_rank": ("tiny", "ddp2", "learning_rate", "once for each rank"),
    "ignored_tokens_counted": ("tiny", "ddp2", "gradients", "divided by all tokens"),
    "padding_is_the_end": ("tiny", "ddp2", None, "other labels"),
    "positions_missing": ("tiny", "ddp2", None, "other positions"),
    "untied": ("tiny", "zero2", None, "no longer tied"),
    "drawn_for_the_shard": ("tiny-pretrain", "tp2", None, "times as wide"),
    "padding_in_the_softmax": ("tiny-pretrain", "tp2", "loss", "vocabulary is padded"),
    "seed_by_rank": ("tiny-pretrain", "dp2", None, "start from different weights"),
    "norms_not_marked": ("tiny-pretrain", "tp2+sp", "gradients", "sequence parallelism"),
    "ties_not_summed": ("tiny-pretrain", "pp2", "gradients", "tied"),
    "norm_counts_twice": ("tiny-pretrain", "tp2", "gradient_norm", "counted more than once"),
    "same_dropout_inside": ("tiny-pretrain", "tp2", None, "inside of tensor-parallel"),
    "wrong_slices": ("tiny-pretrain", "cp2", "loss", "cp:"),
}
STEPS = {"rate_times_ranks": 3, "ties_not_summed": 3, "scheduler_by_rank": 3, "not_clipped": 3, "no_master_weights": 3}


def test_every_fault_is_a_case() -> None:
    assert set(FAULTS) == {each.__name__ for each in (*FINETUNE, *PRETRAIN)}


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plans by recipe and layout, and one reference run for each contract."""
    folder = tmp_path_factory.mktemp("parity")
    for name, changes in (("plain", {}), ("tied", {"tie_word_embeddings": True})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(MODEL | changes))
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    rows = [{"text": " ".join(words[: 1 + number % 9])} for number in range(79)]
    (folder / "short.jsonl").write_text("\n".join(map(json.dumps, rows)))
    references: dict[str, Run] = {}

    def get(fault: str, recipe: str, layout: str) -> tuple[Plan, Run]:
        options: dict[str, Any] = SMALL | {
            "model": str(folder / ("tied" if fault in ("ties_not_summed", "untied") else "plain"))
        }
        if fault in ("mean_of_means", "logged_by_one_rank", "rest_dropped", "ignored_tokens_counted"):
            options |= {"dataset": str(folder / "short.jsonl"), "packing": False}
        if fault == "positions_missing":  # several documents in each sequence, which the recipe's own are too long for
            options |= {"dataset": str(folder / "short.jsonl"), "packing": True}
        reference, plans = plans_of(recipe, layout, options)
        if fault == "rest_dropped":
            reference, plans[layout] = (_one_epoch(plan) for plan in (reference, plans[layout]))
        program = ("tests.verify.parity.faulty", fault) if fault == "batch_norm" else ()
        steps = 99 if fault == "rest_dropped" else 3
        key = f"{recipe} {sorted(options.items())} {program} {steps}"
        if key not in references:
            references[key] = start(reference, folder / f"reference-{len(references)}", steps, 300.0, program)
        return plans[layout], references[key]

    return get


def _one_epoch(plan: Plan) -> Plan:
    import msgspec

    return msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, total_steps=0, warmup_steps=1))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_and_named(fault: str, experiments: Any, tmp_path: Path) -> None:
    recipe, layout, quantity, words = FAULTS[fault]
    plan, one = experiments(fault, recipe, layout)
    steps = 99 if fault == "rest_dropped" else STEPS.get(fault, 2)
    one = _first(one, steps)
    try:
        found = pair(plan, one, start(plan, tmp_path, steps, 300.0, ("tests.verify.parity.faulty", fault)))
    except Refused as refusal:  # the program finds these itself, and ends
        found = refused(plan, one, refusal)
    assert found["verdict"] == "fail"
    assert words in found["cause"], found
    if quantity is not None:
        assert found["where"]["quantity"] == quantity, found


def _first(run: Run, steps: int) -> Run:
    """The reference as if it had been stopped after so many steps."""
    short = Run(run.folder, run.logged[:steps])
    short.steps = min(steps, run.steps)
    return short
