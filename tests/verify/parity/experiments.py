"""Small experiments for runs of the real programs: models, texts and contracts; one reference run for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tests.verify.parity.ranks import start
from toolkit.cli.parity import plans_of
from toolkit.plan import Plan
from toolkit.verify.parity.traces import Run

SMALL: dict[str, Any] = {"cluster": "local-cpu", "sequence_length": 32, "global_batch": 8}
LLAMA = {
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
EXPERTS = {
    **{key: LLAMA[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")},
    **{key: LLAMA[key] for key in ("num_hidden_layers", "vocab_size", "max_position_embeddings")},
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 48,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "head_dim": 16,
    "tie_word_embeddings": False,
}
MODELS = {
    "plain": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "experts": EXPERTS,
}
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
TEXTS = {
    "short": [" ".join(WORDS[: 1 + number % 9]) for number in range(79)],
    "few": [f"number {number} {WORDS[number % 10]}" for number in range(20)],  # 19 of them are trained on
}
CONTRACTS: dict[str, dict[str, Any]] = {
    "one epoch": {"total_steps": 0, "warmup_steps": 1},
    "dropout": {"lora_dropout": 0.1},
    "clipped": {"gradient_clipping": 0.25},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "lengths": {"dataset": "short", "packing": False},
    "one epoch": {"dataset": "short", "packing": False},
    "packed": {"dataset": "short", "packing": True},
    "epochs": {"dataset": "few", "packing": False},
}


class Experiments:
    """Plans by recipe, layout and material, and the run of one process that layouts of one contract share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._references: dict[str, Run] = {}
        for name, config in MODELS.items():
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(config))
        for name, texts in TEXTS.items():
            (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))

    def get(
        self, recipe: str, layout: str, material: str = "plain", steps: int = 3, fault: str = "", own_model: bool = True
    ) -> tuple[Plan, Run]:
        """The plan of a layout, and its reference; ``fault`` is one that is in the reference too."""
        options = SMALL | OPTIONS.get(material, {})
        if own_model:
            options["model"] = str(self.folder / (material if material in MODELS else "plain"))
        if "dataset" in options:
            options["dataset"] = str(self.folder / f"{options['dataset']}.jsonl")
        reference, plans = plans_of(recipe, layout, options)
        changes = CONTRACTS.get(material, {})
        plan, alone = (
            msgspec.structs.replace(each, contract=msgspec.structs.replace(each.contract, **changes))
            for each in (plans[layout], reference)
        )
        key = f"{recipe} {reference.contract.method} {material} {own_model} {steps} {fault}"
        if key not in self._references:
            folder = self.folder / f"reference-{len(self._references)}"
            self._references[key] = start(alone, folder, steps, fault)
        return plan, self._references[key]
