"""What an emitter refuses to write, because the files would say something else than the plan.

A plan.json can be edited by hand, so each emitter asks again. Only what an emitter itself divides,
rounds or has no words for is refused here; the rules of the frameworks belong to the search.
"""

from __future__ import annotations

from toolkit.errors import Problems
from toolkit.model import ModelSpec
from toolkit.plan import Plan

OPTIMIZERS = {
    "ddp": ("adamw", "adamw_8bit", "sgd"),
    "deepspeed": ("adamw", "adamw_8bit", "sgd"),
    "fsdp": ("adamw", "adamw_8bit", "sgd"),
    "megatron": ("adamw", "sgd"),
}

# activation functions of config.json that the pretraining program builds, by its own names
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def require_layout(problems: Problems, plan: Plan) -> None:
    """World size, batch triple, contract and workload must agree exactly: nothing is rounded later."""
    s, cluster = plan.strategy, plan.cluster
    world = s.tp * s.pp * s.cp * s.dp
    if world != cluster.num_gpus:
        problems.add(
            f"tp {s.tp} x pp {s.pp} x cp {s.cp} x dp {s.dp} = {world} processes, "
            f"but {cluster.nodes} nodes x {cluster.gpus_per_node} = {cluster.num_gpus}",
            "plan again for this cluster with toolkit plan",
        )
    batch = s.micro_batch_size * s.gradient_accumulation_steps * s.dp
    if batch != plan.workload.global_batch_size:
        problems.add(
            f"micro batch {s.micro_batch_size} x accumulation {s.gradient_accumulation_steps} x dp {s.dp} = {batch}, "
            f"but the global batch is {plan.workload.global_batch_size}",
            "the global batch belongs to the experiment: change micro batch or accumulation so that the product is it",
        )
    for field in ("global_batch_size", "sequence_length", "precision", "method", "optimizer"):
        planned, learnt = getattr(plan.workload, field), getattr(plan.contract, field)
        if planned != learnt:
            problems.add(
                f"{field} is {planned!r} in the plan's workload and {learnt!r} in its contract",
                "plan again with toolkit plan: the estimates belong to the first, the program follows the second",
            )
    known = OPTIMIZERS.get(s.framework, ())
    if plan.workload.optimizer not in known:
        problems.add(
            f"optimizer {plan.workload.optimizer!r} with {s.framework} is not something that these files can state",
            f"use one of {', '.join(known)}",
        )


def require_data_parallel(problems: Problems, plan: Plan) -> None:
    """DeepSpeed, FSDP and DDP files here describe data-parallel ranks only."""
    s = plan.strategy
    if (s.tp, s.pp, s.cp, s.ep) != (1, 1, 1, 1):
        problems.add(
            f"{s.framework} with tp {s.tp}, pp {s.pp}, cp {s.cp}, ep {s.ep}: only data parallelism can be written",
            "use --framework megatron for the other axes",
        )
    if plan.workload.precision == "fp8":
        problems.add(f"{s.framework} with fp8 cannot be written", "use --framework megatron, or --precision bf16")


def require_megatron(problems: Problems, plan: Plan) -> None:
    """Layers per stage must come out whole, and the model must be one that the flags can describe."""
    s, model = plan.strategy, plan.model
    chunks = s.pp * s.virtual_pipeline_stages
    if model.num_hidden_layers % chunks:
        problems.add(
            f"{model.num_hidden_layers} layers do not divide into pp {s.pp} x {s.virtual_pipeline_stages} virtual "
            "stages: Megatron would build fewer layers without a word",
            "choose degrees whose product divides the layers",
        )
    if s.virtual_pipeline_stages > 1 and s.pp == 1:
        problems.add(f"{s.virtual_pipeline_stages} virtual pipeline stages with pp 1", "use pp of 2 or more")
    if s.zero_stage > 1 or s.offload:
        problems.add(
            f"Megatron with zero stage {s.zero_stage} and offload level {s.offload} cannot be written",
            "its distributed optimizer is stage 1, without offload",
        )
    if plan.workload.method != "full":
        problems.add(f"Megatron with method {plan.workload.method!r} cannot be written", "use --framework deepspeed")
    for words in inexpressible(model):
        problems.add(f"{model.name}: megatron-core 0.16.1 cannot build {words}", "use --framework deepspeed or fsdp")


def inexpressible(model: ModelSpec) -> tuple[str, ...]:
    """What of this model the flags of megatron-core 0.16.1's GPT cannot say; empty when it can be built.

    Read from megatron-core 0.16.1 ``transformer_config.py``, ``gpt_layer_specs.py`` and ``gpt_model.py``.
    """
    biases = (model.attention_bias, model.attention_output_bias, model.mlp_bias)
    found = {
        "state-space mixers": set(model.layer_mixers) != {"A"},
        "layers without an MLP": "-" in model.layer_mlps,
        "parts beside the language stack": bool(model.other_parameters),
        f"{model.norms_per_layer} norms in a layer (it has 2)": model.norms_per_layer != 2,
        "a norm after the embedding": model.embedding_norm,
        "a stack without a final norm": not model.final_norm,
        "a query-key norm over the whole width (its norm is per head)": model.qk_norm == "full",
        "a bias on the output layer": model.lm_head_bias,
        "biases on some projections only": biases not in ((False,) * 3, (True, False, False), (True,) * 3),
        "biases on experts": model.expert_bias,
        f"a {'gated ' if model.gated_mlp else ''}MLP with {activation(model)}": (
            ACTIVATIONS.get(activation(model)) not in (("silu",) if model.gated_mlp else ("gelu", "gelu_tanh"))
        ),
        "sliding windows on some layers only": 0 < model.sliding_window_layers < model.num_hidden_layers,
    }
    return tuple(words for words, holds in found.items() if holds)


def activation(model: ModelSpec) -> str:
    """The activation function as config.json writes it; where it says nothing, SiLU in a gated MLP and else GELU."""
    return model.hidden_act or ("silu" if model.gated_mlp else "gelu")
