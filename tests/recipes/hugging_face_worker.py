"""What every rank of the conversion tests runs, in one process group for all layouts and families.

``torchrun ... -m tests.recipes.hugging_face_worker FOLDER``: rank 0 makes a small random model of each family with
transformers and keeps its logits; every layout reads it into megatron-core, computes the logits, and writes a Hugging
Face folder again. ``results.json`` has the largest difference of a logit and whether all tensors came back bit for bit.
"""

import json
import sys
from pathlib import Path

from recipes.pretrain import machine

MACHINE = machine.on_cpu()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402

from recipes.pretrain import checkpoints, convert  # noqa: E402
from recipes.pretrain.hugging_face import architecture, transfer  # noqa: E402
from recipes.pretrain.hugging_face.files import Weights  # noqa: E402
from toolkit.strategy import Strategy  # noqa: E402

SHAPE = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.04,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MODELS = {
    "llama": ("llama", {"head_dim": 8}),
    "llama-3.1": ("llama", {"head_dim": 16, "rope_parameters": LLAMA3, "num_key_value_heads": 1}),
    "mistral": ("mistral", {"head_dim": 8, "sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-moe": (
        "qwen3_moe",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        | {"norm_topk_prob": True},
    ),
    "qwen3-moe-raw-gates": (
        "qwen3_moe",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
    "qwen2-moe": (
        "qwen2_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        | {"shared_expert_intermediate_size": 80, "norm_topk_prob": False},
    ),
    "mixtral": ("mixtral", {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
EXPERTS = ("qwen2-moe", "qwen3-moe", "qwen3-moe-raw-gates", "mixtral")
LAYOUTS = {"tp2": {"tp": 2}, "pp2": {"pp": 2}, "ep2": {"ep": 2}}
CASES = [
    *((name, "tp2") for name in MODELS),
    *((name, "pp2") for name in ("llama", "qwen3", "mixtral")),
    *((name, "ep2") for name in EXPERTS),
]
SEQUENCE = 32  # longer than the window of the Mistral


def make(folder: Path) -> None:
    """A random model of each family, with norms and biases that are not all ones and zeros, and its logits."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, SEQUENCE))
    torch.save(tokens, folder / "tokens.pt")
    for name, (family, special) in MODELS.items():
        config = transformers.AutoConfig.for_model(family, **SHAPE | special)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
            torch.save(model(tokens).logits, folder / f"{name}.logits.pt")
        # several files, as large models have
        model.save_pretrained(folder / name, max_shard_size="200KB")


def logits(chunks, tokens, config):
    """All logits on every rank, through the library's pipeline schedule."""

    def step(_, model):
        positions = torch.arange(tokens.size(1)).expand_as(tokens)
        return model(tokens, positions, None), lambda output, non_loss_data=True: output

    with torch.no_grad():
        found = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=None,
            model=chunks[0],
            num_microbatches=1,
            seq_length=tokens.size(1),
            micro_batch_size=tokens.size(0),
            forward_only=True,
            collect_non_loss_data=True,
        )
    if not parallel_state.is_pipeline_last_stage():
        return None
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(found[0]) for _ in range(group.size())]
    dist.all_gather(parts, found[0].contiguous(), group=group)
    return torch.cat(parts, -1)[..., : SHAPE["vocab_size"]]


def same(first: Path, second: Path) -> bool:
    one, two = Weights(first), Weights(second)
    return one.names == two.names and all(torch.equal(one.read(name), two.read(name)) for name in one.names)


def case(folder: Path, name: str, degrees: dict) -> dict:
    source, result = folder / name, folder / f"{name}-{'-'.join(degrees)}"
    config = architecture.read_config(source)
    spec = architecture.spec_of(config, name)
    dp = 2 // degrees.get("tp", 1) // degrees.get("pp", 1)
    layout = Strategy(framework="megatron", dp=dp, sequence_parallel=int("tp" in degrees), **degrees)
    core = convert.core_of(config, spec, "fp32", layout, SEQUENCE)
    chunks, transformer = convert.build(core, spec, transfer.start_from(Weights(source), spec.model_type, 260))
    chunks[0].eval()
    made = logits(chunks, torch.load(folder / "tokens.pt"), transformer)
    expected = torch.load(folder / f"{name}.logits.pt")
    error = float((made - expected).abs().max()) if made is not None else 0.0
    saved = result.with_name(f"{result.name}.megatron")
    if dist.get_rank() == 0:
        saved.mkdir()
    dist.barrier()
    dist_checkpointing.save(checkpoints.weights_state(chunks), str(saved), checkpoints.save_strategy(), None)
    for parameter in chunks[0].parameters():
        parameter.data.zero_()  # what is written next is what was loaded
    state = dist_checkpointing.load(checkpoints.weights_state(chunks), str(saved), strict="raise_unexpected")
    chunks[0].load_state_dict(state["model"])
    transfer.export(chunks, transformer, config, 260, result)
    errors = [None, None]
    dist.all_gather_object(errors, error)
    parallel_state.destroy_model_parallel()
    scale = float(expected.abs().max())
    return {"error": max(errors), "scale": scale, "same": same(source, result)}


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        make(folder)
    dist.barrier()
    results = {f"{name} {layout}": case(folder, name, LAYOUTS[layout]) for name, layout in CASES}
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
