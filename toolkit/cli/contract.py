"""From the options of a command to a Contract: what the recipe sets, the options replace, and defaults assume."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from toolkit.cluster import ClusterSpec
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec
from toolkit.recipe import CHOICES, Contract, Recipe, contract_sha256
from toolkit.units import format_count

# A step of about 4 million tokens up to 1,024 GPUs (Llama 2, arXiv:2307.09288, table 1) and 16 million
# above (Llama 3 405B, arXiv:2407.21783, section 3.4.1); adapters learn from far fewer, how many is assumed.
PRETRAIN_BATCH_TOKENS = 4 * 2**20
LARGE_PRETRAIN_BATCH_TOKENS = 16 * 2**20
ADAPTER_BATCH_SEQUENCES = 128
# option: field of the contract that it replaces, and nothing else with it
CONTRACT_OPTIONS = {
    "sequence_length": "sequence_length",
    "learning_rate": "learning_rate",
    "optimizer": "optimizer",
    "dataset": "dataset",
    "tokenizer": "tokenizer",
    "lora_rank": "lora_rank",
}
ADAPTERS = ("lora", "qlora")
# peaks of Llama 2 7B (arXiv:2307.09288, table 1) and of QLoRA up to 13B (arXiv:2305.14314)
LEARNING_RATE = {"full": 3.0e-4, "lora": 2.0e-4, "qlora": 2.0e-4}


def contract_of(
    options: dict[str, Any], recipe: Recipe | None, model: ModelSpec, cluster: ClusterSpec, said: list[str]
) -> Contract:
    """The recipe's contract with what the options change, or one made of defaults that are all said."""
    base = recipe.contract if recipe else Contract(model=model.name)
    changes: dict[str, Any] = {}
    if recipe and model.source.endswith("config.json") and (found := _from_anywhere(base.model)) != base.model:
        base = msgspec.structs.replace(base, model=found)  # a folder beside which the command was given
    options = options | {name: _from_anywhere(options[name]) for name in ("dataset", "tokenizer") if options.get(name)}
    if options.get("params") or options.get("model"):
        changes["model"] = _from_anywhere(options["model"]) if options.get("model") else model.name
    method = options.get("method") or base.method
    changes["method"] = method
    changes["precision"] = _precision(options, recipe, cluster, said)
    if model.num_experts > 0 and (recipe is None or "model" in changes):  # a recipe's own model: as the recipe says
        changes["expert_balance"] = "sequence"
    if options.get("tokens"):
        from toolkit.units import parse_tokens

        changes["total_tokens"] = float(parse_tokens(options["tokens"]))
        if base.total_steps:  # they would win
            changes["total_steps"] = 0
            said.append(f"--tokens {options['tokens']} replaces the recipe's {base.total_steps} steps")
    if recipe is None:
        length = options.get("sequence_length") or _default_length(model, said)
        changes["sequence_length"] = length
        counts = options.get("gpu_counts") or (cluster.num_gpus,)
        changes["global_batch_size"] = options.get("global_batch") or _default_batch(method, length, counts, said)
        changes["learning_rate"] = options.get("learning_rate") or LEARNING_RATE[method]
        changes |= {name: options[name] for name in ("dataset", "tokenizer", "optimizer") if options.get(name)}
        if method in ADAPTERS and options.get("lora_rank"):  # scaled as by default: alpha is twice the rank
            changes |= {"lora_rank": options["lora_rank"], "lora_alpha": 2 * options["lora_rank"]}
        said += _said_of_schedule(options, method)
    else:
        if options.get("global_batch") and options["global_batch"] != base.global_batch_size:
            from toolkit.batch_scaling import rescaled

            base, sentences = rescaled(base, options["global_batch"])
            said += sentences
        for option, field in CONTRACT_OPTIONS.items():
            if options.get(option) and options[option] != getattr(base, field):
                changes[field] = options[option]
                said.append(
                    f"{field} {options[option]} replaces the recipe's {getattr(base, field) or 'own'}: "
                    "this is a new experiment, and nothing else is adapted to it"
                )
    if options.get("lora_rank") and method not in ADAPTERS:
        raise ToolkitError(
            f"--lora-rank {options['lora_rank']} with method {method}, which trains no adapters",
            remedy="use --method lora or qlora, or leave --lora-rank out",
        )
    contract = msgspec.structs.replace(base, **changes)
    if recipe is None and method in ADAPTERS:
        rank = "" if options.get("lora_rank") else " (no --lora-rank given)"
        said.append(
            f"LoRA of rank {contract.lora_rank}{rank}, alpha {contract.lora_alpha}, on all linear layers: a --recipe "
            "states its own"
        )
    if recipe and contract != recipe.contract:
        new, old = (contract_sha256(each)[:16] for each in (contract, recipe.contract))
        said.append(f"contract {new}, no longer {recipe.name}@{recipe.version} with {old}")
    if recipe and not contract.dataset:
        said.append(f"recipe {recipe.name} names no data set: give --dataset before the files are started")
    if contract.objective == "dpo":
        said.append(
            "objective dpo: memory and seconds of its reference model and of its log probabilities are computed from"
            " the code of trl, and were not measured on a GPU"
        )
    longest = model.max_position_embeddings
    if longest and contract.sequence_length > longest:
        said.append(
            f"sequence length {contract.sequence_length} is longer than the {longest} positions of {model.name}"
        )
    if model.learned_positions and contract.sequence_length > model.learned_positions:
        raise ToolkitError(
            f"sequence length {contract.sequence_length} does not fit the {model.learned_positions} "
            f"learned positions of {model.name}",
            remedy=f"use --sequence-length {model.learned_positions} or less",
        )
    return contract


def _from_anywhere(name: str) -> str:
    """A path as the training program finds it from another directory; names stay as they are."""
    from toolkit.registry import files
    from toolkit.registry.models import find

    path = files.expanded(name)
    is_path = "/" in name or name.endswith(".json") or find(name) is None  # load_model prefers a registered name
    return str(path.absolute()) if is_path and files.is_named(path) else name


def _said_of_schedule(options: dict[str, Any], method: str) -> list[str]:
    """What a contract without a recipe assumes beyond the options."""
    said = []
    if not options.get("learning_rate"):
        kind = ", a rate for pretraining" if method == "full" else ""
        said.append(f"learning rate {LEARNING_RATE[method]:g}{kind} (no --learning-rate given)")
    said.append("cosine schedule without warm-up, no weight decay: a --recipe states its own")
    if not options.get("dataset"):
        said.append("no data set: give --dataset, or a --recipe, before the files are started")
    return said


def _precision(options: dict[str, Any], recipe: Recipe | None, cluster: ClusterSpec, said: list[str]) -> str:
    """The precision asked for, checked against the hardware; by default bf16, or fp16 where bf16 is missing."""
    accelerator = cluster.accelerator
    asked: str | None = options.get("precision") or (recipe.contract.precision if recipe else None)
    if asked is None:
        if "bf16" in accelerator.peak_flop_per_second:
            return "bf16"
        said.append(f"{accelerator.name} has no bf16: fp16 with loss scaling is planned")
        return "fp16"
    if asked not in accelerator.peak_flop_per_second:
        known = ", ".join(each for each in CHOICES["precision"] if each in accelerator.peak_flop_per_second)
        raise ToolkitError(f"{accelerator.name} has no {asked}", remedy=f"use --precision with one of: {known}")
    return asked


def _default_length(model: ModelSpec, said: list[str]) -> int:
    longest = model.learned_positions or model.max_position_embeddings or 4096
    length = min(4096, longest)
    said.append(f"sequence length {length} (no --sequence-length given)")
    return length


def _default_batch(method: str, length: int, counts: tuple[int, ...], said: list[str]) -> int:
    """A usual number of sequences per step, made divisible by every number of GPUs where it can be."""
    gpus = max(counts)
    if method == "full":
        tokens = PRETRAIN_BATCH_TOKENS if gpus <= 1024 else LARGE_PRETRAIN_BATCH_TOKENS
        batch = max(tokens // length, 1)
    else:
        batch = ADAPTER_BATCH_SEQUENCES
    together = 1
    for count in sorted(counts):  # where they cannot all divide it, the smaller ones do
        whole = math.lcm(together, count)
        odd_part = math.lcm(together, count // (count & -count))
        if whole <= batch or len(counts) == 1:
            together = whole if whole <= batch else odd_part
        elif odd_part <= batch:
            together = odd_part
    batch = -(-batch // together) * together
    said.append(f"global batch {batch} sequences ({format_count(batch * length)} tokens; no --global-batch given)")
    return batch
