"""ModelSpec: the shape of a transformer, in the names of Hugging Face ``config.json``."""

from __future__ import annotations

import msgspec


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that parameter, FLOP and memory formulas need to know about a model.

    Counts are bare numbers; widths are in elements. ``mixers`` and ``mlps`` are empty for a uniform
    stack; otherwise one letter per layer.

    ======  =======================================================================================
    mixer   ``A`` attention, ``M`` state space (Mamba-2 when ``mamba_num_heads`` is set, else Mamba),
            ``B`` attention and state space side by side, ``L`` gated delta rule (linear attention),
            ``C`` gated short convolution, ``-`` none
    MLP     ``D`` dense, ``E`` routed experts (with the shared ones), ``-`` none
    ======  =======================================================================================

    A layer that these fields cannot describe is counted once by whoever reads the model and put into
    ``counted_layers``; the formulas then take those rows as they are.
    """

    name: str
    source: str = ""
    model_type: str = "llama"

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int = 0
    tie_word_embeddings: bool = False
    sliding_window: int = 0
    sliding_window_layers: int = 0  # how many layers use the window; 0 with a window means all

    gated_mlp: bool = True
    attention_bias: bool = False  # on the query, key and value projections
    attention_output_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    norm_bias: bool = False  # LayerNorm has one, RMSNorm has not
    unbiased_layer_norm: bool = False  # torch.nn.LayerNorm all the same, without a bias (MPT, DBRX)
    norms_per_layer: int = 2
    qk_norm: str = "none"  # none | head (head_dim wide, shared by heads) | full (over the whole width)
    qk_norm_bias: bool = False
    attention_output_gate: bool = False  # the query projection also makes a gate as wide as the queries
    attention_sinks: bool = False  # one learned logit per head
    fused_qkv: bool = False  # query, key and value are one matrix in the Hugging Face layout
    fused_gate_up: bool = False  # so are gate and up
    learned_positions: int = 0  # rows of a learned position table
    embedding_size: int = 0  # width of the embedding where it is projected to hidden_size; 0: the same
    embedding_norm: bool = False
    final_norm: bool = True

    # mixture of experts: 0 experts is a dense model
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0
    shared_expert_intermediate_size: int = 0  # width of all shared experts together
    shared_expert_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False

    # multi-head latent attention: kv_lora_rank 0 is ordinary attention
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    # state-space mixers
    state_size: int = 0
    conv_kernel: int = 0
    mamba_intermediate_size: int = 0
    time_step_rank: int = 0
    mamba_num_heads: int = 0
    mamba_groups: int = 0
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    mamba_gated_norm: bool = True  # Mamba-2 only: a norm over mamba_intermediate_size
    mamba_inner_norms: bool = False  # norms on time step, B and C (Jamba)

    # gated delta rule; conv_kernel above is shared
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_attention_parameters: int = 0  # of one L layer, where it is another linear attention

    mixers: str = ""
    mlps: str = ""

    # read only when the model is built: none of these changes a count, a byte or a FLOP
    hidden_act: str = ""  # silu, gelu ... as config.json writes it; empty: silu if gated, else gelu
    rope_theta: float = 0.0  # base of the rotary frequencies; 0: not stated
    rope_scaling_factor: float = 0.0  # Llama-3.1's long-context scaling; 0: none
    partial_rotary_factor: float = 1.0  # share of head_dim that is rotated
    norm_epsilon: float = 0.0  # 0: not stated
    initializer_range: float = 0.0  # 0: not stated
    router_aux_loss_coef: float = 0.0
    parallel_residual: bool = False  # attention and MLP of a layer read the same input

    # parts beside the language stack (vision tower, projector ...), counted whole on every rank
    other_parameters: dict[str, int] = {}
    # parameters of every layer that no field above describes, whole on every tensor-parallel rank
    other_layer_parameters: int = 0
    # per layer (sharded, replicated, routed_experts, routed_experts_active); empty: from the fields above
    counted_layers: tuple[tuple[int, int, int, int], ...] = ()
    counted_largest_tensor: int = 0  # with counted_layers: the largest parameter tensor

    notes: tuple[str, ...] = ()  # assumptions made while reading the model: always shown

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def layer_mixers(self) -> str:
        """One letter per layer for its token mixer."""
        return self.mixers or "A" * self.num_hidden_layers

    @property
    def layer_mlps(self) -> str:
        """One letter per layer for its MLP."""
        return self.mlps or ("E" if self.is_moe else "D") * self.num_hidden_layers
