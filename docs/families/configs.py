"""Tiny configs of a model type: the plain one, and one for each of its switches thrown."""

import copy
import dataclasses
import re

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import sizes
from overrides import OVERRIDES

# Fields that no tensor depends on.
IGNORED = re.compile(
    r"use_cache|output_|return_dict|scale_|norm_topk|tie_word|dropout|is_encoder_decoder|router_aux"
    r"|normalize|gradient|_token|kernels|mem_eff|do_|apply_"
)
LAYER_KINDS = (
    "layer_types", "layers_block_type", "mlp_layer_types", "indexer_types", "block_types",
)  # fmt: skip
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
OPTIONAL_SIZES = (
    "shared_intermediate_size", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
    "shared_expert_intermediate_size", "hidden_size_per_layer_input", "moe_latent_size",
)  # fmt: skip


def default(model_type):
    cls = CONFIG_MAPPING[model_type]
    if model_type == "gemma4_assistant":  # its own default does not validate
        text = {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
        }
        return cls(text_config=text)
    return cls()


def plain(model_type):
    """The fields of a type's tiny config."""
    return sizes.tiny(default(model_type), OVERRIDES)


def all_of(model_type):
    """The plain config's fields, then those with each switch thrown."""
    base = plain(model_type)
    yield base
    cls = CONFIG_MAPPING[model_type]
    for path, value in switches(base, cls, []):
        values = layer_kinds(cls, base, path) if value is LAYER_KINDS else [value]
        for value in values:
            fields = copy.deepcopy(base)
            at = fields
            for name in path[:-1]:
                at = at[name]
            at[path[-1]] = value
            yield fields


def switches(fields, cls, path):
    """(path, other value) of every field that may change which tensors there are."""
    for field in dataclasses.fields(cls):
        if field.name in sizes.COMMON or IGNORED.search(field.name):
            continue
        missing = field.default is dataclasses.MISSING
        value = fields.get(field.name, None if missing else field.default)
        other = other_value(field.name, value)
        if other is not ...:
            yield path + [field.name], other
    for name, value in fields.items():
        if isinstance(value, dict) and value.get("model_type") in CONFIG_MAPPING:
            yield from switches(value, CONFIG_MAPPING[value["model_type"]], path + [name])
        elif isinstance(value, dict):
            sub = (getattr(cls, "sub_configs", None) or {}).get(name)
            if isinstance(sub, type) and issubclass(sub, PreTrainedConfig):
                yield from switches(value, sub, path + [name])


def other_value(name, value):
    """A switch's other value; ... for a field that is none."""
    if isinstance(value, bool):
        return not value
    if name in LAYER_KINDS:
        return LAYER_KINDS
    if name in EXPERT_COUNTS and value:
        return 0
    if name in OPTIONAL_SIZES:
        return 0 if value else 1 if "num" in name or "n_" in name else 64
    if name in ("q_lora_rank", "head_dim_none"):
        return None if value else 64
    if name in ("first_k_dense_replace", "num_dense_layers", "num_kv_shared_layers"):
        return 0 if value else 1
    if name == "position_embedding_type":
        return "absolute"
    return ...


def layer_kinds(cls, base, path):
    """All layers of each kind, and the kinds in reverse."""
    try:
        config = cls(**copy.deepcopy(base))
        for name in path[:-1]:
            config = getattr(config, name)
        usual = list(getattr(config, path[-1]) or [])
    except Exception:  # a kind of its own that no field tells
        return []
    return [[kind] * len(usual) for kind in dict.fromkeys(usual)] + [usual[::-1]]


def difference(fields, base):
    """What of a config's fields is not the plain one's, in words."""
    words = []

    def walk(x, y, path):
        for name in x:
            if isinstance(x[name], dict) and isinstance(y.get(name), dict):
                walk(x[name], y[name], path + [name])
            elif x[name] != y.get(name):
                words.append(".".join(path + [name]) + "=" + str(x[name])[:60])

    walk(fields, base, [])
    return words
