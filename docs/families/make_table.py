"""Makes format/src/plan/families.json from an installed transformers. README.md says how to run it.

    python3 make_table.py OUT [MODEL_TYPE ...]

Every class is made on the meta device from tiny configs: no weights, no network, no GPU. The same
version of transformers gives the same bytes. What could not be made is told on stderr, and left out.
"""

import argparse
import copy
import json
import os
import re
import sys
import warnings

warnings.filterwarnings("ignore")
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]

import torch
import torch.nn as nn
import transformers
import transformers.core_model_loading as loading
from transformers import PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    get_model_conversion_mapping,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_LMS,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT,
)

import configs
from tree import Conflict, config_path, merge, show, tree_of

# The version of the reference implementation whose saves the planner gives by this table.
REFERENCE = "0.25.1"

# Ties that a class spells out from its layers when it is made.
LAYER_TIES = {
    "ZambaModel": {"@hybrid": "shared_transf"},
    "Zamba2Model": {"@hybrid": "shared_transformer"},
}
# Lists whose length a config's number of layers is.
LAYER_LISTS = ("layers", "h", "blocks", "layer", "block", "resblocks")
# Vision models that composites are released with, beside their usual ones.
VISION = [
    "clip_vision_model", "siglip_vision_model", "siglip2_vision_model", "pixtral", "vit", "dinov2",
    "dinov2_with_registers", "aimv2_vision_model", "internvl_vision", "got_ocr2_vision",
    "sam_vision_model", "qwen2_5_vl_vision", "qwen2_vl_vision", "qwen3_vl_vision", "idefics2_vision",
    "idefics3_vision", "smolvlm_vision", "altclip_vision_model", "beit", "deit", "dinov3_vit",
    "intern_vit", "eva_clip", "mlcd_vision_model", "aria_vision", "convnext", "swin",
]  # fmt: skip
# Sub-models that are another tree for each of their architectures.
NOT_ONE_TREE = ("timm_wrapper", "gemma3n_vision")


def tell(*words):
    print(*words, file=sys.stderr, flush=True)


def on_meta(make, *args):
    with torch.device("meta"):
        return make(*args, dtype=torch.bfloat16)


def tree(model):
    """A model's tree, with the tensors that its class keeps in fp32 marked."""
    plan = model._get_dtype_plan(torch.bfloat16)
    kept = loading.build_glob_alternation(list(plan))[0] if plan else None
    return tree_of(model, kept)


def conversions(model):
    rules = get_model_conversion_mapping(model, add_legacy=False)
    return [rule_of(rule) for rule in rules or []]


def rule_of(transform):
    """One of transformers' weight transforms, as the table has it."""
    rule = {"s": list(transform.source_patterns), "t": list(transform.target_patterns)}
    if transform.scope_prefix is not None:
        rule["scope"] = transform.scope_prefix
    if isinstance(transform, loading.WeightConverter):
        rule["ops"] = [operation(op) for op in transform.operations]
    elif isinstance(transform, loading.GroupWeightRename):
        rule["kind"] = "group"
    elif isinstance(transform, loading.LayerPairCollapse):
        rule["kind"] = "pair"
    elif hasattr(transform, "offset"):
        rule["kind"] = "offset"
        rule["offset"] = transform.offset
    return rule


def operation(op):
    arguments = {
        name: value
        for name, value in vars(op).items()
        if value is not None and not isinstance(value, loading.ConversionOps)
    }
    return [type(op).__name__, arguments]


def describe(model_type, config, cls, default):
    """A type's entry but for its tree, the tree, and the model, of one config."""
    part = ""
    if model_type in CAUSAL_LMS:
        # A composite's causal LM may be made of its text config alone.
        text = (getattr(type(config), "sub_configs", None) or {}).get("text_config")
        if text is not None and getattr(cls, "config_class", None) == text:
            part = "text_config"
            config, default = config.get_text_config(), default.get_text_config()
    model = on_meta(cls._from_config, copy.deepcopy(config))
    entry = {"class": cls.__name__, "prefix": model.base_model_prefix}
    if part:
        entry["config"] = part
    found = {
        "ties": ties(model_type, model, default, part),
        "counts": {} if model_type == "dory" else counts(model),  # Dory counts its halves of layers
        "decoder": decoder(model),
        "conv": conversions(model),
    }
    entry.update({key: value for key, value in found.items() if value or value == ""})
    return entry, tree(model), model


def ties(model_type, model, default, part):
    """[module, configs that may ask, what holds if none says, {target: source}] of every module that
    ties."""
    out = []
    for path, module in model.named_modules():
        if not isinstance(module, PreTrainedModel) or not module._tied_weights_keys:
            continue
        at = config_path(model.config, module.config)
        own = default
        for name in filter(None, at.split(".")):
            own = getattr(own, name, own)
        names = LAYER_TIES.get(type(module).__name__, dict(module._tied_weights_keys))
        asked = [at] if part else tie_configs(model_type, at)
        out.append([path, asked, bool(getattr(own, "tie_word_embeddings", False)), names])
    return out


def tie_configs(model_type, at):
    """The configs whose tie_word_embeddings counts: text_config's too where the class passes it on."""
    if at == "":
        try:
            fields = copy.deepcopy(configs.plain(model_type))
            fields.pop("tie_word_embeddings", None)
            cls = CONFIG_MAPPING[model_type]
            usual = cls(**copy.deepcopy(fields)).tie_word_embeddings
            fields["text_config"]["tie_word_embeddings"] = not usual
            if cls(**fields).tie_word_embeddings != usual:
                return ["", "text_config"]
        except (KeyError, TypeError, AttributeError):
            pass
    return [at]


def counts(model):
    """{list: config field} of the lists whose length is a config's number of layers."""
    out = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or not len(module):
            continue
        around = [
            other
            for name, other in model.named_modules()
            if isinstance(other, PreTrainedModel) and (name == "" or path.startswith(name + "."))
        ]
        config = around[-1].config
        field = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
        named = path.rpartition(".")[2] in LAYER_LISTS
        if named and getattr(config, field, None) == len(module):
            at = config_path(model.config, config)
            out[re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)] = (at + "." if at else "") + field
    return out


def decoder(model):
    """The path of the module whose layers the reference merges; None where it finds none."""
    try:
        found = getattr(model.model, "language_model", model.model)
        if found.layers is not None:
            return next(path for path, module in model.named_modules() if module is found)
    except (AttributeError, StopIteration):
        pass
    return None


def add_base(config, entry, whole):
    """Adds what a model of the type is as another's sub-model: its base model's conversions, and
    whether its base model is the part of its tree under its prefix."""
    try:
        model = on_meta(transformers.AutoModel.from_config, copy.deepcopy(config))
    except Exception:  # there is no base model of it
        return
    if rules := conversions(model):
        entry["base_conv"] = rules
    own = whole.kids.get(entry["prefix"])
    if own is None or show(tree(model)) != show(own):
        entry["base"] = False


def family(model_type):
    """A type's entry: its plain config's, with the union of the trees of all its configs."""
    cls_name = CAUSAL_LMS.get(model_type) or IMAGE_TEXT.get(model_type)
    if isinstance(cls_name, (tuple, list)):
        cls_name = cls_name[0]
    cls = getattr(transformers, cls_name)
    default = configs.default(model_type)
    base = configs.plain(model_type)
    entry = union = None
    for i, fields in enumerate(configs.all_of(model_type)):
        try:
            config = CONFIG_MAPPING[model_type](**copy.deepcopy(fields))
            described, found, model = describe(model_type, config, cls, default)
            if i == 0 and model_type in CAUSAL_LMS:
                add_base(config, described, found)
        except Exception:
            if i == 0:
                raise
            continue  # a switch that cannot be thrown alone
        if entry is None:
            entry, union = described, found
            if sorted(state_names(model)) != sorted(model.state_dict()):
                tell("note", model_type, "its state_dict is not its modules' tensors")
            continue
        try:
            union = merge(union, found)
        except Conflict as conflict:
            tell("note", model_type, configs.difference(fields, base), conflict)
        if described.get("conv") != entry.get("conv"):
            tell("note", model_type, "conversions depend on", configs.difference(fields, base))
        for path, field in described.get("counts", {}).items():
            entry.setdefault("counts", {}).setdefault(path, field)
    entry["tree"] = show(union)
    return entry


def state_names(model):
    for path, module in model.named_modules(remove_duplicate=False):
        kept = module._non_persistent_buffers_set
        own = list(module._parameters.items())
        own += [(name, buffer) for name, buffer in module._buffers.items() if name not in kept]
        for name, tensor in own:
            if tensor is not None:
                yield f"{path}.{name}" if path else name


def sub_model(model_type):
    """The entry of a vision or audio model that is a part of others."""
    entry = union = None
    for i, fields in enumerate(configs.all_of(model_type)):
        try:
            config = CONFIG_MAPPING[model_type](**copy.deepcopy(fields))
            model = on_meta(transformers.AutoModel.from_config, config)
        except Exception:
            if i == 0:
                raise
            continue
        found = tree(model)
        if entry is None:
            union, entry = found, {"class": type(model).__name__, "prefix": model.base_model_prefix}
            if rules := conversions(model):
                entry["base_conv"] = rules
            continue
        try:
            union = merge(union, found)
        except Conflict as conflict:
            tell("note", model_type, conflict)
    entry["tree"] = show(union)
    return entry


def entries(model_types, make):
    out = {}
    for model_type in model_types:
        try:
            out[model_type] = make(model_type)
        except Exception as error:
            tell("left out:", model_type, type(error).__name__, str(error).split("\n")[0][:200])
    return out


def parts_of(families):
    """The model types that may be others' sub-models and are no families."""
    usual = {t for f in families.values() for t in re.findall(r"@[\w.]*/([\w-]+)", f["tree"])}
    wanted = dict.fromkeys(VISION + sorted(usual - set(CAUSAL_LMS)))
    return [t for t in wanted if t in CONFIG_MAPPING and t not in NOT_ONE_TREE]


def share(entries, key):
    """The distinct values under a key (and base_KEY), of which the entries keep the indexes."""
    places = {}
    for entry in entries:
        for name in (key, "base_" + key):
            if name in entry:
                text = json.dumps(entry[name])
                entry[name] = places.setdefault(text, len(places))
    return [json.loads(text) for text in places]


def write(out, families, models):
    def compact(value):
        return json.dumps(value, separators=(",", ":"))

    def lines(values):
        return ",\n".join(values)

    def by_name(entries):
        return lines(f"{compact(name)}:{compact(entry)}" for name, entry in entries.items())

    everything = [*families.values(), *models.values()]
    rules, trees = share(everything, "conv"), share(everything, "tree")
    legacy = [rule_of(rule) for rule in get_checkpoint_conversion_mapping("legacy")]
    made_with = {"transformers": transformers.__version__, "glyd": REFERENCE}
    with open(out, "w") as file:
        file.write(f'{{"made_with":{compact(made_with)},\n"legacy":{compact(legacy)},\n')
        file.write(
            f'"families":{{\n{by_name(families)}\n}},\n"models":{{\n{by_name(models)}\n}},\n'
        )
        file.write(f'"conv":[\n{lines(map(compact, rules))}\n],\n')
        file.write(f'"tree":[\n{lines(map(compact, trees))}\n]}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", help="the file to write")
    parser.add_argument("model_types", nargs="*", help="model types [default: all]")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity(50)
    wanted = arguments.model_types or list(dict.fromkeys([*CAUSAL_LMS, *IMAGE_TEXT]))
    families = entries(wanted, family)
    models = entries(parts_of(families), sub_model)
    write(arguments.out, families, models)
    tell(len(families), "model types,", len(models), "parts of others")


if __name__ == "__main__":
    main()
