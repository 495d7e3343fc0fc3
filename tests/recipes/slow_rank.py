"""Either training program with a slow rank: ``python -m tests.recipes.slow_rank PROGRAM RANK WHERE SECONDS ...``.

data       each of its samples (fine-tuning), or micro batches (pretraining), takes that much longer to read
forward    each of its forward passes
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def main() -> int:
    """Slow it down, then run the program."""
    program, rank, where, seconds, *arguments = sys.argv[1:]
    slow = os.environ.get("RANK", "0") == rank

    def later(function: Any) -> Any:
        def delayed(*positional: Any, **keywords: Any) -> Any:
            time.sleep(float(seconds))
            return function(*positional, **keywords)

        return delayed if slow else function

    if program == "finetune":
        from transformers.models.llama.modeling_llama import LlamaForCausalLM

        from recipes.finetune import data, train

        if where == "data":
            data.Sequences.__getitem__ = later(data.Sequences.__getitem__)
        else:
            LlamaForCausalLM.forward = later(LlamaForCausalLM.forward)
        return train.main(arguments)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        from recipes.pretrain import machine

        machine.on_cpu()
    from megatron.core.models.gpt import GPTModel

    from recipes.pretrain import data as pretraining_data
    from recipes.pretrain import train as pretrain

    if where == "data":
        pretraining_data._batch = later(pretraining_data._batch)
    else:
        GPTModel.forward = later(GPTModel.forward)
    return pretrain.main(arguments)


if __name__ == "__main__":
    from recipes import program

    program.leave(main())
