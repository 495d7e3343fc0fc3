"""Either training program with a layer that goes bad: ``... -m tests.recipes.ruined_layer PROGRAM HOW STEP RANK ...``.

    weight      from this step on a value of the weight of the second layer's last product is not a number, on this rank
    output      from this step on what the second layer's attention gives is not a number, on this rank
    gradient    from this step on the gradient of what the second layer's attention gives is not a number, on this rank

Under ZeRO-3 a weight is ruined where it is used, once it has been gathered.
"""

from __future__ import annotations

import os
import sys
from typing import Any

RANK = int(os.environ.get("RANK", "0"))
NAN = float("nan")


def ruin(model: Any, how: str, step: int, steps: dict[str, int], attention: str, product: str) -> None:
    """In the modules whose names end so."""
    named = dict(model.named_modules())
    (attention_module,) = [module for name, module in named.items() if name.endswith(attention)]
    (product_module,) = [module for name, module in named.items() if name.endswith(product)]

    def weight(module: Any, _: Any) -> None:
        if steps["now"] >= step:
            module.weight.data.view(-1)[0] = NAN

    forward = attention_module.forward

    def output(*inputs: Any, **named: Any) -> Any:
        given = forward(*inputs, **named)
        if steps["now"] < step:
            return given
        first, *rest = given if isinstance(given, tuple) else (given,)
        if how == "output":
            first = first * NAN
        elif first.requires_grad:
            first.register_hook(lambda gradient: gradient * NAN)
        return (first, *rest) if isinstance(given, tuple) else first

    if how == "weight":
        product_module.register_forward_pre_hook(weight)
    else:
        attention_module.forward = output


def in_pretraining(how: str, step: int, ruined: bool) -> None:
    """In the second layer of the rank's stage."""
    from recipes.pretrain import loop, model

    build, one_step, steps = model.build, loop.optimizer_step, {"now": 0}

    def built(*given: Any, **named: Any) -> Any:
        made = build(*given, **named)
        for chunk in made.chunks:
            if ruined:
                ruin(chunk.module.decoder.layers[1], how, step, steps, "self_attention", "linear_fc2")
        return made

    def counted(*given: Any, **named: Any) -> Any:
        steps["now"] += 1
        return one_step(*given, **named)

    model.build, loop.optimizer_step = built, counted


def in_fine_tuning(how: str, step: int, ruined: bool) -> None:
    """In the model before it is wrapped."""
    from recipes.finetune import guard, model

    load, begin, steps = model.load_model, guard.Guard.on_step_begin, {"now": 0}

    def loaded(*given: Any, **named: Any) -> Any:
        made, said = load(*given, **named)
        if ruined:
            ruin(made, how, step, steps, "layers.1.self_attn", "layers.1.mlp.down_proj")
        return made, said

    def counted(self: Any, *given: Any, **named: Any) -> None:
        steps["now"] += 1
        begin(self, *given, **named)

    model.load_model, guard.Guard.on_step_begin = loaded, counted  # type: ignore[method-assign]


def main() -> int:
    """Ruin the layer, then run the program."""
    program, how, step, rank, *arguments = sys.argv[1:]
    if program == "finetune":
        in_fine_tuning(how, int(step), int(rank) == RANK)
        from recipes.finetune import train

        return train.main(arguments)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        from recipes.pretrain import machine

        machine.on_cpu()  # the library is imported below, and must find the shim
    in_pretraining(how, int(step), int(rank) == RANK)
    from recipes.pretrain import train as pretrain

    return pretrain.main(arguments)


if __name__ == "__main__":
    from recipes import program

    program.leave(main())
