"""Packed documents do not see one another: the same loss and gradients packed and apart, and a proof that can fail."""

from typing import Any

import numpy as np
import pytest

from recipes.byte_tokenizer import PADDING
from recipes.finetune import batches, packing
from recipes.finetune.packing import IGNORED, Blocks
from toolkit.errors import ToolkitError

pytestmark = pytest.mark.slow  # torch and transformers
LENGTH, VOCABULARY = 48, 260
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PADDING,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "mistral": COMMON | {"sliding_window": 8},
    "qwen3_moe": COMMON | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {key: value for key, value in COMMON.items() if key != "num_key_value_heads"},
}


def model_of(kind: str, attention: str = "sdpa", **more: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **(SHAPES.get(kind, COMMON) | more))
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():  # far from uniform, so that a token that is seen shows
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    made.config.use_cache = False  # as the Trainer sets it
    return made.eval()


def documents() -> list[packing.Piece]:
    random = np.random.default_rng(0)
    made = []
    for size in (5, 17, 30, 9, 3, 44, 12, 2, 25, 8):
        trained = random.random(size) < 0.6
        trained[0], trained[-1] = False, True
        made.append(packing.Piece(random.integers(0, 256, size).astype(np.int32), trained))
    return made


def loss_of(model: Any, blocks: Blocks, size: int) -> tuple[float, float]:
    """Loss by the trained tokens of all blocks, and the norm of its gradient, ``size`` rows at a time."""
    import torch

    tokens = int((blocks.labels != IGNORED).sum())
    collate, total = batches.collate_for(model), 0.0
    model.zero_grad()
    for first in range(0, len(blocks.tokens), size):
        part = blocks.rows(first, first + size)
        rows = [
            {"input_ids": row, "labels": labels, "position_ids": positions}
            for row, labels, positions, _ in zip(*part, strict=True)
        ]
        loss = model(**collate(rows), num_items_in_batch=tokens).loss
        loss.backward()
        total += loss.item()
    return total, torch.nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None).item()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", SHAPES)
def test_packed_and_apart_have_the_same_loss_and_gradient(kind: str, attention: str) -> None:
    model = model_of(kind, attention)
    packed, _ = packing.whole(documents(), LENGTH, PADDING)
    apart, _ = packing.pad(documents(), LENGTH, PADDING)
    assert len(packed.tokens) < len(apart.tokens) == 10
    expected = loss_of(model, apart, 1)
    for blocks, size in ((packed, 1), (packed, len(packed.tokens)), (apart, 10)):
        assert loss_of(model, blocks, size) == pytest.approx(expected, rel=2e-5)


def test_a_document_in_a_stream_has_the_loss_that_it_has_alone() -> None:
    model = model_of("llama")
    text = [packing.Piece(d.tokens, np.arange(len(d.tokens)) > 0, True) for d in documents()]
    stream, _ = packing.stream(text, LENGTH)
    parts = []
    for tokens, positions in zip(stream.tokens, stream.positions, strict=True):
        for part in np.split(tokens, np.flatnonzero(positions == 0)[1:]):
            parts.append(packing.Piece(part, np.arange(len(part)) > 0))
    apart, _ = packing.pad(parts, LENGTH, PADDING)
    assert loss_of(model, stream, 2) == pytest.approx(loss_of(model, apart, 1), rel=2e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_proof_accepts_models_that_keep_documents_apart(kind: str, attention: str) -> None:
    model = model_of(kind, attention)
    for length in (LENGTH, 2, 3):
        batches.prove_isolation(model, batches.collate_for(model), VOCABULARY, length, "cpu")
    assert not model.training
    half = model.bfloat16()
    batches.prove_isolation(half, batches.collate_for(half), VOCABULARY, LENGTH, "cpu")


class WithMask(batches.Collate):
    """A collator as it is often written: the mask of ones switches the blocks of the attention off."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        batch = super().__call__(rows)
        return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def test_the_proof_finds_documents_that_see_one_another() -> None:
    with pytest.raises(ToolkitError, match="see one another"):
        batches.prove_isolation(model_of("llama"), WithMask(), VOCABULARY, LENGTH, "cpu")
    caching = model_of("llama")
    caching.config.use_cache = True  # transformers 5.24 looks for packed rows only where there is no cache
    with pytest.raises(ToolkitError, match="see one another"):
        batches.prove_isolation(caching, batches.collate_for(caching), VOCABULARY, LENGTH, "cpu")
    mixing = model_of("lfm2", layer_types=["conv", "full_attention"])  # its convolutions know of no documents
    with pytest.raises(ToolkitError, match="see one another"):
        batches.prove_isolation(mixing, batches.collate_for(mixing), VOCABULARY, LENGTH, "cpu")


def test_models_without_position_ids_take_one_document_a_row() -> None:
    import transformers

    config = transformers.AutoConfig.for_model("bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    collate = batches.collate_for(model)
    with pytest.raises(ToolkitError, match="takes no position ids"):
        batches.prove_isolation(model, collate, VOCABULARY, LENGTH, "cpu")
    apart, _ = packing.pad(documents(), LENGTH, PADDING)
    assert loss_of(model, apart, 10) == pytest.approx(loss_of(model, apart, 1), rel=2e-5)


def test_flash_attention_is_told_where_documents_begin_in_every_row() -> None:
    packed, _ = packing.whole(documents(), LENGTH, PADDING)
    rows = [
        {"input_ids": row, "labels": labels, "position_ids": positions}
        for row, labels, positions, _ in zip(*packed, strict=True)
    ]
    batch = batches.Collate(flash=True)(rows)
    edges = batch["cu_seq_lens_q"].tolist()
    lengths = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == packed.tokens.size
    assert {row * LENGTH for row in range(len(rows))} <= set(edges)  # no document goes over the end of a row
    assert batch["max_length_q"] == max(lengths) <= LENGTH
    assert sorted(len(d.tokens) for d in documents()) == sorted(
        length for first, length in zip(edges[:-1], lengths, strict=True) if packed.tokens.ravel()[first] != PADDING
    )
