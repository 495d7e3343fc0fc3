"""Which settings of a contract each training program follows: what it does not follow is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import Problem
from toolkit.recipe import Contract

# program: {setting that it does not follow: what it does instead}. Every other one it reads: a test looks.
UNFOLLOWED: dict[str, dict[str, str]] = {
    "finetune": {},
    "pretrain": {
        "objective": "learns the likelihood of its text",
        "dpo_loss": "has no pairs",
        "dpo_beta": "has no pairs",
        "max_prompt_length": "has no pairs",
        "packing": "packs documents, always",
        "chat_template": "reads plain text",
        "completion_only": "learns every token",
        "lora_rank": "trains all weights",
        "lora_alpha": "trains all weights",
        "lora_targets": "trains all weights",
        "lora_dropout": "trains all weights",
    },
}


def unfollowed(program: str, contract: Contract) -> Iterator[Problem]:
    """A sentence for each setting that is not the default and that the program would not follow."""
    defaults = Contract()
    for name, instead in UNFOLLOWED.get(program, {}).items():
        value = getattr(contract, name)
        if value != getattr(defaults, name):
            yield Problem(
                f"{name} is {value!r}, and the {program} program does not follow it: it {instead}",
                f"leave {name} out, or use another program",
            )
