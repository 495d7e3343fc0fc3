"""The model of the fine-tuning program."""

from __future__ import annotations

from typing import Any


def batch_norm() -> None:
    """A model with a BatchNorm before its final norm; in every run, so also in the reference."""
    import torch

    from recipes.finetune import model

    load = model.load_base

    class Normed(torch.nn.Module):
        def __init__(self, norm: Any, size: int) -> None:
            super().__init__()
            self.norm, self.batch = norm, torch.nn.BatchNorm1d(size, affine=False)

        def forward(self, hidden: Any) -> Any:
            return self.norm(self.batch(hidden.transpose(1, 2)).transpose(1, 2))

    def with_norm(*positional: Any, **keywords: Any) -> Any:
        made, said = load(*positional, **keywords)
        made.model.norm = Normed(made.model.norm, made.config.hidden_size)
        return made, said

    model.load_base = with_norm


def untied() -> None:
    """The output layer gets a tensor of its own."""
    import torch

    from recipes.finetune import model

    load = model.load_base

    def apart(*positional: Any, **keywords: Any) -> Any:
        made, said = load(*positional, **keywords)
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach().clone())
        return made, said

    model.load_base = apart
    model._check_size = lambda *_: None


def documents_see_one_another() -> None:
    """The attention of the model does not stop where position ids begin anew."""
    from transformers import masking_utils

    from recipes.finetune import batches

    batches.prove_isolation = lambda *_: None
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None


def another_rotary_base() -> None:
    """The base of rotary positions is another default."""
    from recipes.finetune import model

    right = model._configuration

    def changed(*arguments: Any) -> Any:
        config = right(*arguments)
        config.rope_parameters["rope_theta"] = 500_000.0
        return config

    model._configuration = changed


def rotary_frequencies_in_bf16() -> None:
    """A cast of the whole model takes the frequencies of rotary positions with it."""

    def cast(made: Any) -> None:
        inverse = made.model.rotary_emb.inv_freq
        inverse.copy_(inverse.bfloat16())

    _changed(cast)


def embedding_frozen() -> None:
    """The embedding is not trained."""
    _changed(lambda made: made.get_input_embeddings().weight.requires_grad_(False))


def base_in_bf16() -> None:
    """The base of adapters is loaded in bf16, and computed with in fp32."""
    _changed(lambda made: [parameter.data.copy_(parameter.bfloat16()) for parameter in made.parameters()])


def base_decays() -> None:
    """Weight decay reaches the frozen base too."""
    import torch

    bases: list[Any] = []
    _changed(bases.append)
    update = torch.optim.AdamW.step

    def decaying(self: Any, *positional: Any, **keywords: Any) -> Any:
        result = update(self, *positional, **keywords)
        with torch.no_grad():
            for parameter in bases[0].parameters():
                if not parameter.requires_grad:
                    parameter.mul_(1.0 - 0.1 * self.param_groups[0]["lr"])
        return result

    torch.optim.AdamW.step = decaying


def same_dropout_everywhere() -> None:
    """The random state of dropout does not depend on the rank."""
    from recipes.finetune import randomness

    right = randomness.seed_rank
    randomness.seed_rank = lambda seed, step, rank: right(seed, step, 0)


def left_in_evaluation() -> None:
    """The model is not put back into training mode."""
    import torch

    right = torch.nn.Module.train
    torch.nn.Module.train = lambda self, mode=True: right(self, False)


def _changed(change: Any) -> None:
    from recipes.finetune import model

    load = model.load_base

    def loaded(*positional: Any, **keywords: Any) -> Any:
        made, said = load(*positional, **keywords)
        change(made)
        return made, said

    model.load_base = loaded
