"""What of a model megatron-core's GPT can build: read by the emitters and by the search."""

from __future__ import annotations

from toolkit.model import ModelSpec
from toolkit.numeric import Number, ceil_div

VOCABULARY_MULTIPLE = 128  # Megatron-LM's default of --make-vocab-size-divisible-by

# activation functions of config.json that the pretraining program builds, by its own names
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def padded_vocabulary(vocab_size: int, tp: Number) -> Number:
    """``ceil(V / (128 tp)) 128 tp``: rows of the embedding table, as Megatron-LM pads it."""
    multiple = VOCABULARY_MULTIPLE * tp
    return ceil_div(vocab_size, multiple) * multiple


def inexpressible(model: ModelSpec) -> tuple[str, ...]:
    """What of this model the flags of megatron-core 0.16.1's GPT cannot say; empty when it can be built.

    Read from megatron-core 0.16.1 ``transformer_config.py``, ``gpt_layer_specs.py`` and ``gpt_model.py``.
    """
    biases = (model.attention_bias, model.attention_output_bias, model.mlp_bias)
    found = {
        "token mixers other than attention": set(model.layer_mixers) != {"A"},
        "layers without an MLP": "-" in model.layer_mlps,
        "parts beside the language stack": bool(model.other_parameters),
        f"{model.norms_per_layer} norms in a layer (it has 2)": model.norms_per_layer != 2,
        "parallel residuals": model.parallel_residual,
        "biases in the query-key norm": model.qk_norm_bias,
        "a LayerNorm without a bias": model.unbiased_layer_norm,
        "attention sinks": model.attention_sinks,
        "an output gate of the attention": model.attention_output_gate,
        "an embedding narrower than the model": model.embedding_size not in (0, model.hidden_size),
        "a norm after the embedding": model.embedding_norm,
        "a stack without a final norm": not model.final_norm,
        "a query-key norm over the whole width (its norm is per head)": model.qk_norm == "full",
        "a bias on the output layer": model.lm_head_bias,
        "biases on some projections only": biases not in ((False,) * 3, (True, False, False), (True,) * 3),
        "biases on experts": model.expert_bias,
        "layers of their own shape": bool(model.other_layer_parameters or model.counted_layers),
        f"a {'gated ' if model.gated_mlp else ''}MLP with {activation(model)}": (
            ACTIVATIONS.get(activation(model)) not in (("silu",) if model.gated_mlp else ("gelu", "gelu_tanh"))
        ),
        "sliding windows on some layers only": 0 < model.sliding_window_layers < model.num_hidden_layers,
    }
    return tuple(words for words, holds in found.items() if holds)


def activation(model: ModelSpec) -> str:
    """The activation function as config.json writes it; where it says nothing, SiLU in a gated MLP and else GELU."""
    return model.hidden_act or ("silu" if model.gated_mlp else "gelu")
