"""What free text says: Megatron's options, modules of selective recomputation."""

from __future__ import annotations

import pytest

from tests.validate.runs import LOOKUPS, row
from toolkit.validate.job import Job, Skip, job_of
from toolkit.validate.notes import Notes, notes_of, recompute_modules


def said(text: str) -> Notes:
    found = row()
    return notes_of(type(found)(found.line, found.texts | {"notes": text}, found.numbers))


def test_options_are_read() -> None:
    found = said("CI test x_tp2_etp1_ep4; derived for swiglu=True; transformer_impl=local; position=rope; MLA")
    assert found.gated_mlp is True and found.positions == "rope" and found.unfused
    assert found.expert_tensor_parallel == 1 and found.latent_attention


def test_what_is_not_said_stays_open() -> None:
    found = said("10 steps, mean of 3; flash attention")
    assert found == said("")
    assert (found.gated_mlp, found.positions, found.expert_tensor_parallel) == (None, "", None)
    assert not (found.unfused or found.latent_attention or found.hybrid or found.teacher)


def test_losses_and_modes() -> None:
    assert said("CI test gpt3_mcore_te_tp2_pp2_cross_entropy_loss_fusion").fused_loss
    assert not said("cross_entropy_loss_fusion=False").fused_loss
    assert said("TP reduce-scatter mode; recompute not stated").reduce_scatter


@pytest.mark.parametrize("text", ["hybrid pattern MEM*E", "position=none"])
def test_layers_of_several_kinds(text: str) -> None:
    assert said(text).hybrid


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "core_attn"),
        ("selective", "core_attn"),
        ("selective (op)", "core_attn"),
        ("selective-op", "core_attn"),
        ("selective (per-op SAC)", "core_attn"),
        ("selective (every 2nd layer)", "core_attn"),
        ("minimal_with_context policy", "layernorm+mlp_act"),
        ("selective:moe+layernorm+core_attn+moe_act", "core_attn+layernorm+moe+moe_act"),
        ("policy save_dot_with_context_except_mlp", "mlp"),
        ("selective:mlp-act+norm", "layernorm+mlp_act"),
        ("selective:mla_up_proj+mlp", "mla_up_proj+mlp"),
        ("selective:[layernorm mla_up_proj mlp moe_act]", "layernorm+mla_up_proj+mlp+moe_act"),
        ("selective (RMSNorm, MLA up-proj, SwiGLU)", "layernorm+mla_up_proj+mlp_act+moe_act"),
    ],
)
def test_modules_of_selective_recomputation(text: str, names: str) -> None:
    assert recompute_modules(text) == names


def noted(text: str, **changes: object) -> Job | Skip:
    plain = row(**changes)
    return job_of(type(plain)(plain.line, plain.texts | {"notes": text}, plain.numbers), LOOKUPS)


SHAPE = {"model": "unregistered", "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096}


def test_notes_reach_the_job() -> None:
    """A stated kind of MLP, local modules without fused attention, rotary positions: no dropout by default."""
    plain, gated = noted("swiglu=False; position=rope", **SHAPE), noted("swiglu=True", **SHAPE)
    assert isinstance(plain, Job) and isinstance(gated, Job)
    assert not plain.model.gated_mlp and plain.model.learned_positions == 0 and not plain.workload.dropout
    assert gated.model.gated_mlp and gated.workload.attention == "flash"
    local = noted("transformer_impl=local", **SHAPE)
    assert isinstance(local, Job) and local.workload.attention == "eager"


def test_latent_attention_takes_megatrons_default_ranks() -> None:
    found = noted("MLA", **SHAPE)
    assert isinstance(found, Job)
    assert (found.model.q_lora_rank, found.model.kv_lora_rank, found.model.v_head_dim) == (512, 512, 128)
    assert any("latent attention" in said for said in found.assumed)


def test_a_hybrid_without_its_pattern_is_left_out() -> None:
    found = noted("position=none", **SHAPE)
    assert isinstance(found, Skip) and "state-space" in found.reason


@pytest.mark.parametrize(
    ("text", "schedule", "vocabulary"),
    [
        ("schedule ZB-2p*; 4.36 samples/GPU/s printed", "zb-2p", "ends"),
        ("schedule ZB-V; first and last stage have one layer fewer", "zb-v", "ends"),
        ("ZB-H1 of the paper", "zb-1p", "ends"),
        ("schedule 1F1B-I", "1f1b", "ends"),
        ("method redis: 1F1B with layers redistributed away from last stage", "1f1b", "balanced"),
        ("method vocab-2: vocab layers sharded over pipeline ranks", "1f1b", "spread"),
        ("method baseline: 1F1B, vocab layers on first/last stage", "1f1b", "ends"),
    ],
)
def test_pipelines(text: str, schedule: str, vocabulary: str) -> None:
    assert (said(text).schedule, said(text).vocabulary) == (schedule, vocabulary)


@pytest.mark.parametrize(
    ("text", "overlap"),
    [
        ("overlap_grad_reduce=False, overlap_param_gather=False", "none"),
        ("overlap_grad_reduce=True, overlap_param_gather=False", "gradients"),
        ("overlap_grad_reduce=True, overlap_param_gather=True", "all"),
        ("10 steps", ""),
    ],
)
def test_overlap_of_the_data_axis(text: str, overlap: str) -> None:
    assert said(text).data_overlap == overlap


@pytest.mark.parametrize(
    ("text", "dispatch", "overlap", "graphs"),
    [
        ("cuda_graph=full_iteration/[], dispatcher=hybridep, a2a_overlap=True", "deepep", True, "full"),
        ("cuda_graph=transformer_engine/['attn', 'moe_router'], a2a_overlap=False", "alltoall", False, "attention"),
        ("cuda_graph=None/None", "alltoall", False, "none"),
        ("dispatcher DeepEP; expert-TP 1", "deepep", False, "none"),
        ("batch ramp; DualPipe; micro-batch not stated", "deepep", True, "none"),
    ],
)
def test_how_tokens_travel_to_experts_and_what_graphs_hold(
    text: str, dispatch: str, overlap: bool, graphs: str
) -> None:
    found = noted(text)
    assert isinstance(found, Job)
    work = found.workload
    assert (work.expert_dispatch, work.expert_overlap, work.cuda_graphs) == (dispatch, overlap, graphs)


def test_a_teacher_beside_the_model_is_left_out() -> None:
    found = noted("CI test gpt3_mcore_te_tp2_pp1_modelopt_distill_resume")
    assert isinstance(found, Skip) and "distillation" in found.reason


@pytest.mark.parametrize(
    ("text", "schedule", "vocabulary"),
    [
        ("schedule ZB-2p; 14.5 samples/GPU/s", "zb-2p", "ends"),
        ("schedule ZB-V; x", "zb-v", "ends"),
        ("method vocab-2: vocab layers sharded over pipeline ranks", "1f1b", "spread"),
        ("method interlaced: interlaced pipeline, TP-style vocab layers", "1f1b", "interlaced"),
        ("method redis: 1F1B with layers redistributed away from last stage", "1f1b", "balanced"),
    ],
)
def test_schedules_reach_the_strategy(text: str, schedule: str, vocabulary: str) -> None:
    found = noted(text)
    assert isinstance(found, Job)
    assert (found.strategy.schedule, found.strategy.vocabulary) == (schedule, vocabulary)
