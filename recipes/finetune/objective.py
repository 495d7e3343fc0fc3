"""The Trainer of the contract's objective: the library's own for next tokens, trl's for preferences."""

from __future__ import annotations

from typing import Any

from recipes.finetune import model as models
from toolkit.plan import Plan


def training_arguments(plan: Plan, keywords: dict[str, Any]) -> Any:
    """The library's own, or trl's."""
    if plan.contract.objective == "dpo":
        from recipes.finetune import preference_trainer

        return preference_trainer.training_arguments(plan, keywords)
    from transformers import TrainingArguments

    return TrainingArguments(**keywords)


def trainer(plan: Plan, model: Any, tokenizer: Any, pad: int) -> tuple[Any, dict[str, Any]]:
    """The class for the contract's objective, and what it is given beside what every one is."""
    if plan.contract.objective == "dpo":
        from recipes.finetune import adapters, preference_trainer

        return preference_trainer.PreferenceTrainer, {
            "data_collator": preference_trainer.collator(plan, pad),
            "ref_model": models.load_reference(plan, tokenizer),
            "peft_config": adapters.settings(plan) if plan.contract.method != "full" else None,
        }
    from recipes.finetune import batches
    from recipes.finetune.trainer import ContractTrainer

    return ContractTrainer, {"data_collator": batches.collate_for(model)}
