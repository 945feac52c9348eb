"""Tiny configs: every field of a config class scaled down by the rule that its name matches."""

import dataclasses
import re

from transformers import PreTrainedConfig

# Fields that every config has.
COMMON = {field.name for field in dataclasses.fields(PreTrainedConfig)}

# (pattern of a field's name, value), the first that matches: a number; the name of one that tiny()
# works out; None for the field's own default. Sizes are as small as a layout's steps allow: a hidden
# size of 128 packs, heads of 32, and a vocabulary of 320.
TEXT = [
    (r"^(type_vocab_size|task_type_vocab_size)$", None),
    (r"vocab_size", 320),
    (r"unpadded_vocab_size", 320),
    (r"^(hidden_size_per_layer_input)$", 64),
    (r"^moe_hidden_size$", 128),
    (r"^moe_latent_size$", 64),
    (r"^(ple_embed_dim)$", 64),
    (r"^(embedding_size|input_embedding_size)$", 128),
    (r"^output_embedding_size$", 128),
    (
        r"^(moe_intermediate_size|expert_ffn_hidden_size|shared_expert_intermediate_size|shared_experts_intermediate_size|moe_shared_expert_intermediate_size|shared_intermediate_size|share_expert_dim)$",
        64,
    ),
    (
        r"^(hidden_size|d_model|n_embd|emb_dim|word_embed_proj_dim|embedding_dim|attention_hidden_size|lru_width|out_hidden_size|output_dim|projector_output_dim|hidden_size_global|text_hidden_size|image_text_hidden_size)$",
        128,
    ),
    (
        r"^(intermediate_size|intermediate_size_mlp|dense_intermediate_size|prefix_dense_intermediate_size|.*ffn_dim|n_inner|d_ff|dff|dim_ff|d_inner|ffn_hidden_size|feed_forward_size|alignment_intermediate_size)$",
        192,
    ),
    (
        r"^(num_hidden_layers|n_layer|n_layers|num_layers|encoder_layers|decoder_layers|layers|num_encoder_layers|num_decoder_layers|depth|num_blocks|num_layers_per_stack)$",
        "L",
    ),
    (
        r"^(num_attention_heads|n_head|n_heads|num_heads|attention_heads|encoder_attention_heads|decoder_attention_heads|num_encoder_attention_heads|num_decoder_attention_heads|swa_num_attention_heads|num_sliding_attention_heads|index_n_heads|indexer_n_heads|num_global_attention_heads)$",
        4,
    ),
    (
        r"^(num_key_value_heads|num_kv_heads|kv_n_heads|swa_num_key_value_heads|num_global_key_value_heads|indexer_kv_heads|num_sliding_key_value_heads)$",
        "KV",
    ),
    (
        r"^(head_dim|v_head_dim|qk_nope_head_dim|attention_head_dim|d_head|d_kv|dim_head|kv_channels|swa_head_dim|index_head_dim|indexer_head_dim|global_head_dim|attention_head_size|qk_head_dim_nope|swa_v_head_dim|linear_head_dim)$",
        32,
    ),
    (r"^qk_rope_head_dim$", 16),
    (r"^(q_lora_rank|kv_lora_rank|o_lora_rank)$", 64),
    (r"^rotary_dim$", 16),
    (r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_routed_experts)$", "E"),
    (r"^(num_experts_per_tok|moe_topk|moe_k|moe_top_k|top_k_experts)$", "K"),
    (r"^(n_group|topk_group)$", 1),
    (r"^zero_expert_num$", 2),
    (r"^(first_k_dense_replace|num_dense_layers)$", "D"),
    (
        r"^(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_source_positions|max_target_positions|context_length|max_temporal_embeddings|max_2d_position_embeddings)$",
        128,
    ),
    (
        r"^(sliding_window|sliding_window_size|attention_window_size|window_size|attention_chunk_size|keep_window_size)$",
        32,
    ),
    (r"^linear_(key|value)_head_dim$", 32),
    (r"^linear_num_key_heads$", 2),
    (r"^linear_num_value_heads$", 4),
    (r"^linear_num_heads$", 4),
    (r"^(mamba_d_state|ssm_state_size)$", 16),
    (r"^(mamba_n_heads|mamba_num_heads|n_mamba_heads)$", 8),
    (r"^(mamba_head_dim|mamba_headdim|mamba_d_head)$", 32),
    (r"^(mamba_d_ssm)$", 256),
    (r"^(mamba_dt_rank|time_step_rank)$", None),
    (r"^state_size$", 16),
    (r"^(mamba_n_groups|n_groups|mamba_ngroups)$", 2),
    (r"^(adapter_rank|laurel_rank|hc_lowrank|loop_gate_rank|gated_norm_rank)$", 16),
    (r"^(d_rel)$", 16),
    (r"^rel_extent$", 64),
    (r"^conv_dim$", 128),
    (r"^(ngram_vocab_size_base)$", 64),
    (r"^split_ngram_parts$", 2),
    (r"^make_ngram_vocab_size_divisible_by$", 16),
    (r"^heads_per_ngram$", 2),
    (r"^(index_topk|index_topk_blocks|indexer_budget)$", 16),
    (r"^num_mel_bins$", 16),
    (r"^codebook_size$", 32),
    (r"^(backbone_hidden_size)$", 128),
    (r"^num_centroids$", 64),
    (r"^centroid_intermediate_top_k$", 8),
    (r"^shape_embed_dim$|^pronunciation_embed_dim$", 32),
    (r"^router_hidden_size$", 64),
    (
        r"^(projector_hidden_size|projection_hidden_size|projection_dim|density_router_hidden_size|projection_intermediate_size)$",
        64,
    ),
    (r"^prompt_mid_dim$", 64),
    (r"^prompt_length$", 8),
    (r"^num_query_tokens$|^latent_query_num$", 8),
    (r"^encoder_hash_byte_group_vocab$", 64),
    (r"^n_langs$", None),
    (r"^image_size$", 28),
    (r"^canvas_length$", 16),
    (r"^image_seq_length$", 16),
    (r"^mm_tokens_per_image$", 4),
    (r"^resampler_dim_head$", 16),
    (r"^resampler_heads$", 2),
    (r"^resampler_depth$", 2),
    (r"^aligner_num_add_layers$", 2),
    (r"^resampler_num_latents$", 4),
]
VISION = [
    (r"vocab_size", 64),
    (
        r"^(hidden_size|d_model|embed_dim|patch_embed_hidden_size|attention_dim|image_token_embed_dim|dim|projection_hidden_size)$",
        64,
    ),
    (r"^(intermediate_size|mlp_dim|.*ffn_dim|d_ff|feed_forward_hidden_size)$", 128),
    (
        r"^(out_hidden_size|output_dim|projector_output_dim|projector_input_dim|text_hidden_size|output_proj_dims|projection_dim|proj_dim|hidden_size_global|encoder_hidden_size)$",
        128,
    ),
    (
        r"^(num_hidden_layers|n_layer|n_layers|num_layers|encoder_layers|decoder_layers|layers|depth|num_global_layers|conf_num_hidden_layers|num_blocks|decoder_num_layers)$",
        2,
    ),
    (
        r"^(num_attention_heads|num_heads|encoder_attention_heads|decoder_attention_heads|conf_num_attention_heads|attention_heads)$",
        2,
    ),
    (r"^(num_key_value_heads|num_kv_heads)$", 2),
    (r"^head_dim$", 32),
    (r"^image_size$", "IMG"),
    (r"^(num_position_embeddings)$", 16),
    (r"^(num_patches|num_image_tokens)$", 16),
    (
        r"^(output_channels|base_channels|vector_quantization_hidden_dimension|codebook_dim|downsample_hidden_size|post_conv_in_channels|post_conv_mid_channels|post_conv_out_channels|nemo_conv_channels|ext_pw_out_channel|depthwise_separable_out_channel)$",
        32,
    ),
    (r"^(codebook_size|num_embeddings)$", 32),
    (
        r"^(max_position_embeddings|max_source_positions|max_target_positions|max_temporal_embeddings|position_embedding_size)$",
        64,
    ),
    (r"^(num_mel_bins|n_mel_bins|mel_vocab_size|input_size|input_feat_size)$", 16),
    (r"^(num_experts|n_routed_experts|num_local_experts)$", 4),
    (r"^(num_experts_per_tok)$", 2),
    (r"^(moe_intermediate_size)$", 64),
    (
        r"^(pos_emb_height|pos_emb_width|posemb_grid_size|init_pos_emb_height|init_pos_emb_width)$",
        8,
    ),
    (r"^(max_num_patches|seq_len|max_vit_seq_len|img_max_token_num)$", 16),
    (
        r"^(max_image_size|max_img_size|min_image_size|resolution|crop_size|force_image_size)$",
        "IMG",
    ),
    (r"^resampler_n_latents$|^num_query_tokens$", 8),
    (r"^resampler_head_dim$", 16),
    (r"^resampler_n_heads$", 2),
    (r"^resampler_depth$", 1),
    (r"^projection_hidden_dim$", 64),
    (r"^projection_intermediate_size$", 64),
    (r"^qformer_hidden_size$", 64),
    (r"^vision_hidden_size$", 64),
]
IS_VISION = re.compile(
    r"vision|vit|image|audio|visual|encoder_config|vq|sam|siglip|clip|tokenizer|codec|mimi|protein|radio|pixtral|backbone|speech|perceiver|qformer|adapter",
    re.I,
)
IS_TEXT = re.compile(r"text_config|llm|decoder_config|language")
TOKEN_ID = re.compile(
    r"(pad|bos|eos|sep|cls|mask|unk|decoder_start)_token_id$|^(pad|unk|mask|bos|eos)_index$"
)
# A config with one of these gets four layers, so that each kind of layer is there.
LAYER_KINDS = {
    "layer_types", "layers_block_type", "no_rope_layers", "attn_layer_period", "block_types",
    "attention_types", "mlp_layer_types", "sliding_window_pattern", "attn_layer_indices",
}  # fmt: skip


def fields(config):
    """(name, default, value) of a config's own fields."""
    for field in dataclasses.fields(config):
        if field.name in COMMON and field.name not in ("tie_word_embeddings", "is_decoder"):
            continue
        default = None
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        try:
            value = getattr(config, field.name, None)
        except Exception:  # one value for each layer
            value = default
        yield field.name, default, value


def tiny(config, overrides, path="", top=""):
    """The fields of a tiny config of a config's class; config: the class's default instance."""
    known = list(fields(config))
    values = {name: value for name, _, value in known}
    own = overrides.get(config.model_type, {}) | overrides.get(f"{path}@{top}", {})
    context = context_of(values, own, path)
    out = {}
    for name, default, value in known:
        if isinstance(value, PreTrainedConfig):
            sub = tiny(value, overrides, f"{path}/{name}", top or config.model_type)
            out[name] = dict(sub, model_type=value.model_type) if value.model_type else sub
        elif name in own or isinstance(default, (bool, float, str)):
            continue
        elif TOKEN_ID.search(name) and isinstance(value, int) and value >= 300:
            out[name] = 1 if "pad" in name else 2
        else:
            scaled = scaled_down(name, default, context)
            if scaled is not ...:
                out[name] = scaled
    out.update({name: value for name, value in own.items() if not name.startswith("_")})
    return {name: value for name, value in out.items() if value is not ...}


def context_of(values, own, path):
    """What a rule's value may depend on."""

    def first(*names):
        return next((values[name] for name in names if isinstance(values.get(name), int)), None)

    heads = first("num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = first("num_key_value_heads", "num_kv_heads", "kv_n_heads")
    patch = values.get("patch_size")
    if isinstance(patch, (list, tuple)) and patch and isinstance(patch[0], int):
        patch = patch[0]
    return {
        "vision": bool(IS_VISION.search(path)) and not IS_TEXT.search(path.rpartition("/")[2]),
        "layers": own.get("_L", 4 if values.keys() & LAYER_KINDS else 2),
        "grouped": kv_heads is not None and heads is not None and kv_heads < heads,
        "patch": patch if isinstance(patch, int) else 14,
    }


def scaled_down(name, default, context):
    """The tiny value of a field, or ... for its own default."""
    for pattern, value in VISION if context["vision"] else TEXT:
        if re.search(pattern, name):
            if value is None or default is None or isinstance(default, (list, tuple, dict, str)):
                return ...
            if isinstance(value, str):
                return worked_out(value, default, context)
            return 0 if default == 0 else value
    return ...


def worked_out(what, default, context):
    if what == "L":  # layers
        return context["layers"]
    if what == "E":  # experts
        return min(4, default)
    if what == "K":  # experts of a token
        return min(2, default)
    if what == "D":  # dense layers
        return min(1, default)
    if what == "KV":  # heads of keys and values
        return 1 if default == 1 else 2 if context["grouped"] else 4
    return 2 * context["patch"]  # IMG
