"""Recipe: an experiment as versioned data. The contract says what is learnt, not on how many GPUs."""

from __future__ import annotations

import msgspec


class Contract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changing any of these is a new experiment; changing the cluster never changes them.

    ``model`` is a registry name, a hub name, or a path. ``dataset`` is ``sample`` (the text that is
    shipped), a local JSONL/Parquet/text path, or a hub name. Lengths are in tokens, batches in sequences.
    """

    model: str = ""
    dataset: str = ""
    tokenizer: str = ""  # byte | a hub name or path; empty: the model's own
    sequence_length: int = 4096
    global_batch_size: int = 256
    precision: str = "bf16"
    method: str = "full"
    optimizer: str = "adamw"
    learning_rate: float = 2.0e-5
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    schedule: str = "cosine"  # cosine | linear | constant
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1.0e-8
    gradient_clipping: float = 1.0
    total_steps: int = 0  # 0: from total_tokens or epochs
    total_tokens: float = 0.0
    epochs: float = 1.0
    seed: int = 42
    packing: bool = True
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"


def contract_sha256(contract: Contract) -> str:
    """Fingerprint of an experiment: equal exactly where all settings are equal.

    Over the settings that differ from the defaults, so that a setting added later does not change it;
    a test keeps the defaults from changing (recipes/contracts.lock).
    """
    import hashlib

    defaults = Contract()
    changed = {
        name: value
        for name in contract.__struct_fields__
        if (value := getattr(contract, name)) != getattr(defaults, name)
    }
    return hashlib.sha256(msgspec.json.encode(changed, order="deterministic")).hexdigest()


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contract with its name, version, the program that runs it, and where its settings come from."""

    name: str
    version: int
    program: str  # finetune | pretrain
    summary: str
    source: str
    status: str = "planned only"  # or "verified on <hardware>"
    expected: str = ""
    contract: Contract
