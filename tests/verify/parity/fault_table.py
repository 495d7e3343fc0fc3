"""Which fault is put where, and what parity must say of it."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """``quantity`` is what fails first, None where a rule of ranks finds it; ``words`` are of the cause."""

    recipe: str
    layout: str
    quantity: str | None
    words: str
    material: str = "plain"  # model, data and contract: experiments of test_faults.py
    steps: int = 2
    everywhere: bool = False  # the fault is in the reference too, and shows where there are several ranks


FINETUNE = {
    "mean_of_means": Case("tiny", "ga4", "gradients", "mean of means", "lengths"),
    "tokens_of_own_rank": Case("tiny", "dp2+ga2", "gradients", "by its own tokens", "lengths"),
    "logged_by_one_rank": Case("tiny", "ddp2", "logged_loss", "rank 0 alone", "lengths"),
    "ignored_tokens_counted": Case("tiny", "ddp2", "gradients", "divided by all tokens", "lengths"),
    "not_divided_by_accumulation": Case("tiny", "ga4", "gradients", "4 accumulated micro-batches: they are summed"),
    "divided_by_accumulation_twice": Case("tiny", "zero1+ga2", "gradients", "divided twice"),
    "summed_gradients": Case("tiny", "ddp2", "gradients", "2 data-parallel ranks: they are summed"),
    "no_reduction": Case("tiny", "ddp2", "gradients", "not reduced"),
    "one_rank_counts": Case("tiny", "ddp2", "gradients", "one rank's gradients"),
    "last_micro_batch_alone": Case("tiny", "ga4", "gradients", "of one micro-batch of 4"),
    "never_zeroed": Case("tiny", "ddp2", "gradients", "of the step before"),
    "bf16_reduction": Case("tiny", "ddp2", "gradients", "in bf16"),
    "clipped_in_the_window": Case("tiny", "ga4", "gradients", "clipped before they are complete", "clipped"),
    "local_norm": Case("tiny", "fsdp2", "gradient_norm", "local norm"),
    "same_samples": Case("tiny", "ddp2", None, "read by several ranks"),
    "tail_dropped": Case("tiny", "ddp2", None, "cut to a multiple"),
    "rest_dropped": Case("tiny", "ga4", None, "optimizer steps", "one epoch", 99),
    "one_order_for_all_epochs": Case("tiny", "ddp2", None, "in the order of the first", "epochs", 5),
    "end_filled_from_the_start": Case("tiny", "ddp2", None, "filled up", "epochs", 3),
    "padding_is_the_end": Case("tiny", "ddp2", None, "other labels"),
    "positions_missing": Case("tiny", "ddp2", None, "other positions", "packed"),
    "documents_see_one_another": Case("tiny", "ddp2", "loss", "attention", "packed"),
    "another_rotary_base": Case("tiny", "ddp2", "gradients", "rope_theta is 10000"),
    "rotary_frequencies_in_bf16": Case("tiny", "ddp2", "gradients", "inv_freq"),
    "embedding_frozen": Case("tiny", "ddp2", None, "is frozen"),
    "base_in_bf16": Case("tiny", "lora", None, "another precision"),
    "base_decays": Case("tiny", "lora", None, "not trained, and moves"),
    "same_dropout_everywhere": Case("tiny", "lora", None, "lose the same units", "dropout"),
    "left_in_evaluation": Case("tiny", "lora", None, "evaluation mode", "dropout"),
    "batch_norm": Case("tiny", "ddp2", None, "SyncBatchNorm", everywhere=True),
    "untied": Case("tiny", "zero2", None, "no longer tied", "tied"),
    "rate_times_ranks": Case("tiny", "ddp2", "learning_rate", "scaled by the number of ranks", steps=3),
    "scheduler_by_rank": Case("tiny", "ddp2", "learning_rate", "once for each rank", steps=3),
    "warmup_by_micro_batch": Case("tiny", "ga4", "learning_rate", "warm-up"),
    "not_clipped": Case("tiny", "ddp2", "weights", "not clipped", steps=3),
    "decay_on_norms": Case("tiny", "ddp2", "weights", "norms and biases too"),
    "decay_in_the_gradient": Case("tiny", "ddp2", "weights", "Adam with L2"),
    "default_betas": Case("tiny", "ddp2", "weights", "beta2 is 0.999", steps=3),
    "no_master_weights": Case("tiny", "ddp2", "weights", "master weights", steps=3),
    "shards_not_gathered": Case("tiny", "zero2", None, "not gathered"),
}
PRETRAIN = {
    "seed_by_rank": Case("tiny-pretrain", "dp2", None, "start from different weights"),
    "drawn_for_the_shard": Case("tiny-pretrain", "tp2", None, "times as wide"),
    "padding_in_the_softmax": Case("tiny-pretrain", "tp2", "loss", "vocabulary is padded"),
    "norms_not_marked": Case("tiny-pretrain", "tp2+sp", "gradients", "sequence parallelism"),
    "biases_not_marked": Case("tiny-pretrain", "tp2+sp", "gradients", "norms and biases", "biases"),
    "ties_not_summed": Case("tiny-pretrain", "pp2", "gradients", "tied", "tied", 3),
    "ties_summed_twice": Case("tiny-pretrain", "pp2", "gradients", "summed twice", "tied"),
    "norm_counts_twice": Case("tiny-pretrain", "tp2", "gradient_norm", "counted more than once"),
    "norm_of_own_stage": Case("tiny-pretrain", "pp2", "gradient_norm", "local norm"),
    "same_dropout_inside": Case("tiny-pretrain", "tp2", None, "inside of tensor-parallel"),
    "other_dropout_outside": Case("tiny-pretrain", "tp2", None, "outside of tensor-parallel"),
    "wrong_slices": Case("tiny-pretrain", "cp2", "loss", "cp:"),
    "positions_of_the_slice": Case("tiny-pretrain", "cp2", "gradients", "positions"),
    "no_reduction_over_context": Case("tiny-pretrain", "cp2", "gradients", "over cp"),
    "router_not_marked": Case("tiny-pretrain", "tp2+sp", "gradients", "routers", "experts"),
    "experts_divided_by_all_ranks": Case("tiny-pretrain", "ep2", "gradients", "0.5 of what", "experts"),
    "experts_alike": Case("tiny-pretrain", "ep2", None, "number on the rank", "experts"),
    "balance_not_divided": Case("tiny-pretrain", "ga2", "gradients", "counted for each micro-batch", "experts"),
    "tokens_dropped": Case("tiny-pretrain", "ep2", "loss", "capacity", "experts"),
    "router_in_bf16": Case("tiny-pretrain", "ep2", "gradients", "other experts", "experts"),
    "bias_of_own_tokens": Case("tiny-pretrain", "ep2", None, "expert_bias", "experts", everywhere=True),
}
FAULTS = FINETUNE | PRETRAIN
