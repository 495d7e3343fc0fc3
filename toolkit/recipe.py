"""Recipe: an experiment as versioned data. The contract says what is learnt, not on how many GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from toolkit.errors import Problem
from toolkit.workload import MOST_SEQUENCES, MOST_TOKENS, MOST_TOTAL_TOKENS, WORDS

CHOICES: dict[str, tuple[str, ...]] = {
    **{name: WORDS[name] for name in ("precision", "method", "optimizer", "lora_targets")},
    "schedule": ("cosine", "linear", "constant", "wsd"),
    "init": ("model", "random"),
    "objective": WORDS["objective"],
    "dpo_loss": ("sigmoid", "sigmoid_norm", "hinge", "ipo", "apo_zero"),
    "expert_balance": ("micro_batch", "sequence"),
}
POSITIVE = (
    "sequence_length",
    "global_batch_size",
    "learning_rate",
    "epochs",
    "lora_rank",
    "lora_alpha",
    "adam_epsilon",
    "dpo_beta",
)
NOT_NEGATIVE = (
    "min_learning_rate",
    "warmup_steps",
    "weight_decay",
    "gradient_clipping",
    "total_steps",
    "total_tokens",
    "seed",
    "rope_theta",
    "max_prompt_length",
)
PREFERENCE = ("dpo_loss", "dpo_beta", "max_prompt_length")  # settings of objective dpo alone
SHARES = ("warmup_fraction", "decay_fraction", "lora_dropout")
MOST: dict[str, float] = {  # far above any use: a slip of the hand, and what no later product or schedule could hold
    "sequence_length": MOST_TOKENS,
    "max_prompt_length": MOST_TOKENS,
    "global_batch_size": MOST_SEQUENCES,
    "total_steps": 10**12,
    "warmup_steps": 10**12,
    "lora_rank": 10**6,
    "lora_alpha": 10**6,
    "seed": 2**32 - 1,  # what numpy's generator takes
    "total_tokens": MOST_TOTAL_TOKENS,
    "epochs": 1e6,
    "learning_rate": 1e6,
    "weight_decay": 1e6,
    "adam_epsilon": 1e6,
    "gradient_clipping": 1e15,
    "rope_theta": 1e15,
    "dpo_beta": 1e6,
}


class Contract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changing any of these is a new experiment; changing the cluster never changes them.

    ``model`` is a registry name, a hub name, or a path. ``dataset`` is ``sample`` (the text that is
    shipped), a local JSONL/Parquet/text path, or a hub name: ``owner/name[/configuration][:split]``.
    Lengths are in tokens, batches in sequences; with objective ``dpo`` in pairs of two sequences, the answer that was
    chosen and the one that was rejected. Its reference is the model that training starts from.
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
    schedule: str = "cosine"  # cosine | linear | constant | wsd (warm-up, constant, linear decay at the end)
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
    lora_dropout: float = 0.0
    warmup_fraction: float = 0.0  # of all steps, where warmup_steps is 0
    decay_fraction: float = 0.0  # of all steps: the linear decay of schedule wsd
    rope_theta: float = 0.0  # base of the rotary frequencies; 0: the model's own
    init: str = "model"  # model: the weights that the model's name has, if any; random: drawn from the seed
    chat_template: str = ""  # one of recipes/chat_templates, without .jinja; empty: the tokenizer's own
    completion_only: bool = False  # of a conversation only what the assistant says is learnt
    # likelihood: of every token that is learnt; dpo: chosen answers before rejected ones (arXiv:2305.18290)
    objective: str = "likelihood"
    # of the margin between the two: sigmoid (DPO), sigmoid_norm (both log ratios over the tokens of the answer, as
    # Tülu 3), hinge, ipo, apo_zero: names of trl
    dpo_loss: str = "sigmoid"
    dpo_beta: float = 0.1  # how much the distance from the reference counts
    max_prompt_length: int = 0  # of a prompt this many tokens stay, the last ones; 0: all that fit
    # The loss that keeps experts equally loaded, a product of two means: over the tokens of a micro-batch (with it the
    # experiment depends on how a cluster cuts the batch), or over each sequence (the same on every cluster).
    expert_balance: str = "micro_batch"


def contract_problems(contract: Contract) -> Iterator[Problem]:
    """What no program could run: each value with what it may be; the message begins with the name of the setting."""
    import difflib

    values = {name: getattr(contract, name) for name in contract.__struct_fields__}
    for name, allowed in CHOICES.items():
        if values[name] not in allowed:
            near = difflib.get_close_matches(values[name].casefold(), allowed, n=2, cutoff=0.5)
            remedy = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(allowed))}"
            yield Problem(f"{name} is {values[name]!r}", remedy)
    for name in POSITIVE:
        if not values[name] > 0:
            yield Problem(f"{name} is {values[name]}", "it must be more than 0")
    for name in NOT_NEGATIVE:
        if not values[name] >= 0:  # nan as well
            yield Problem(f"{name} is {values[name]}", "it must not be negative")
    for name, most in MOST.items():
        if values[name] > most:
            yield Problem(f"{name} is {values[name]}", f"it must be at most {most:,.0f}")
    for name in SHARES:
        if not 0.0 <= values[name] <= 1.0:
            yield Problem(f"{name} is {values[name]}", "it is a share, from 0 to 1")
    for name in ("adam_beta1", "adam_beta2"):
        if not 0.0 <= values[name] < 1.0:
            yield Problem(f"{name} is {values[name]}", "it must be in [0, 1)")
    step = max(1.0, 1.0 * contract.global_batch_size) * max(1, contract.sequence_length)
    if MOST["total_steps"] < contract.total_tokens / step <= MOST["total_tokens"]:
        yield Problem(
            f"total_tokens {contract.total_tokens:g} are {contract.total_tokens / step:,.0f} steps of"
            f" {contract.global_batch_size} sequences of {contract.sequence_length} tokens",
            f"they must be at most {MOST['total_steps']:,.0f}",
        )
    if contract.min_learning_rate > contract.learning_rate:
        yield Problem(
            f"min_learning_rate {contract.min_learning_rate} exceeds learning_rate {contract.learning_rate}",
            "learning_rate is the peak",
        )
    if contract.warmup_steps and contract.warmup_fraction:
        yield Problem(
            f"warmup_steps is {contract.warmup_steps} and warmup_fraction {contract.warmup_fraction}",
            "give one of them",
        )
    if (contract.schedule == "wsd") != (contract.decay_fraction > 0.0):
        yield Problem(
            f"schedule is {contract.schedule!r} and decay_fraction {contract.decay_fraction}",
            "schedule wsd needs a decay_fraction, and no other has one",
        )
    yield from _preference_problems(contract)


def _preference_problems(contract: Contract) -> Iterator[Problem]:
    """Settings that contradict the objective."""
    if contract.objective != "dpo":
        defaults = Contract()
        for name in PREFERENCE:
            if getattr(contract, name) != getattr(defaults, name):
                yield Problem(
                    f"{name} is {getattr(contract, name)} with objective {contract.objective!r}",
                    "it is of objective dpo",
                )
        return
    if contract.packing:
        yield Problem("packing is true with objective dpo", "set it to false: a pair is two sequences of its own")
    if contract.completion_only:
        yield Problem("completion_only is true with objective dpo", "leave it out: of a pair only the answers count")
    if contract.total_tokens:
        yield Problem(f"total_tokens is {contract.total_tokens:g} with objective dpo", "give epochs or total_steps")
    if contract.max_prompt_length >= contract.sequence_length:
        yield Problem(
            f"max_prompt_length {contract.max_prompt_length} leaves no room for an answer: "
            f"sequence_length is {contract.sequence_length}",
            "sequence_length is of prompt and answer together",
        )


def sequences_per_step(contract: Contract) -> int:
    """Sequences that a step reads: two of each pair with objective dpo."""
    return contract.global_batch_size * (2 if contract.objective == "dpo" else 1)


def planned_steps(contract: Contract) -> int:
    """Optimizer steps that the contract itself fixes: as given, or enough for its tokens; 0 where only epochs say."""
    tokens_per_step = 1.0 * contract.global_batch_size * contract.sequence_length
    return contract.total_steps or math.ceil(contract.total_tokens / tokens_per_step)


def warmup_steps(contract: Contract, total_steps: int) -> int:
    """Steps of the linear warm-up: as given, or their share of all steps, rounded up as transformers 5.24 does."""
    return contract.warmup_steps or math.ceil(contract.warmup_fraction * total_steps)


def decay_steps(contract: Contract, total_steps: int) -> int:
    """Steps of the linear decay at the end of schedule ``wsd``; 0 of any other."""
    return round(contract.decay_fraction * total_steps)


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
    measured: str = ""  # what a run of this gave, on which hardware; nothing else
    reference: str = (
        ""  # cluster and GPUs, as the options take them: "dgx-h100 8x8"; those of the source, where it says
    )
    differs: str = ""  # in what this differs from the source, because a program cannot do it
    contract: Contract
