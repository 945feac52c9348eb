"""A model's modules as a tree, the union of several such trees, and a tree as the table's text.

docs/families.md, "The tree", says what the text means to a reader.
"""

import functools
import inspect
import re
import sys

import torch
import torch.nn as nn
from transformers import PreTrainedConfig, PreTrainedModel

# Classes whose experts the reference packs by their names: the weights, and those held [in, out].
EXPERTS = {
    "Llama4TextExperts": (("gate_up_proj", "down_proj"), ("gate_up_proj", "down_proj")),
    "Step3p7Experts": (("gate_up_proj", "down_proj"), ()),
    "LongcatFlashExperts": (("gate_up_proj", "down_proj"), ()),
    "DbrxExpertGLU": (("w1", "v1", "w2"), ("w2",)),
    "AriaGroupedExpertsGemm": (("weight",), ("weight",)),
    "JetMoeParallelExperts": (("weight",), ()),
}
# Where the number of experts is not the weight's first dimension: the config's field that has it.
EXPERT_COUNTS = {
    "DbrxExpertGLU": "ffn_config.moe_num_experts",
    "LongcatFlashExperts": "n_routed_experts",
}
# What a class's own initialization writes over the values that were loaded.
OVERWRITTEN = {("ZayaRouter", "balancing_biases"): "LAST=-1"}

DTYPES = {
    torch.bfloat16: "",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.float64: "F64",
}


class Conflict(Exception):
    """Two trees that no one tree describes."""


class Node:
    """A module: its kind (L: a plain nn.Linear, E: an embedding, '': any other), its own tensors
    {name: flags} and its children {name: Node}, both in the model's order."""

    def __init__(self, kind=""):
        self.kind, self.leaves, self.kids = kind, {}, {}
        # Every order of names that was seen, by first sight: the union keeps them all.
        self.leaf_orders, self.kid_orders = {}, {}
        # "@CONFIG/TYPE" of a sub-model that the config chooses.
        self.plug = ""
        # Tensors (NAME) and children (NAME.) that not every instance has.
        self.optional = set()

    def empty(self):
        return not self.leaves and all(kid.empty() for kid in self.kids.values())


def order(sequences):
    """The names of the sequences in an order that agrees with each of them; first seen first where
    they leave it open."""
    names = list(dict.fromkeys(name for sequence in sequences for name in sequence))
    before = {name: set() for name in names}
    for sequence in sequences:
        for earlier, later in zip(sequence, sequence[1:]):
            before[later].add(earlier)
    out = []
    while len(out) < len(names):
        ready = (name for name in names if name not in out and before[name] <= set(out))
        name = next(ready, None)
        if name is None:
            raise Conflict(f"order of {[name for name in names if name not in out]}")
        out.append(name)
    return out


def merge(a, b):
    """The union of two trees: what only one of them has is optional."""
    if a.kind != b.kind:
        if a.empty() and not a.kind:
            return b
        if b.empty() and not b.kind:
            return a
        raise Conflict(f"kind {a.kind!r} {b.kind!r}")
    union = Node(a.kind)
    union.plug = a.plug or b.plug
    union.leaf_orders = {**a.leaf_orders, **b.leaf_orders}
    union.kid_orders = {**a.kid_orders, **b.kid_orders}
    only_one = (set(a.leaves) ^ set(b.leaves)) | {kid + "." for kid in set(a.kids) ^ set(b.kids)}
    union.optional = a.optional | b.optional | only_one
    for name in order(union.leaf_orders):
        x, y = a.leaves.get(name), b.leaves.get(name)
        if x is not None and y is not None and x != y:
            raise Conflict(f"tensor {name} {x} {y}")
        union.leaves[name] = x if x is not None else y
    merge_kids(union, a, b)
    return union


def merge_kids(union, a, b):
    def elements(node):
        return [kid for name, kid in node.kids.items() if name[0] == "*"]

    if elements(a) and elements(b):
        union.kids = as_list(kinds(elements(a) + elements(b)))
        union.kid_orders = {tuple(union.kids): 0}
        return
    for name in order(union.kid_orders):
        try:
            both = name in a.kids and name in b.kids
            kid = (
                merge(a.kids[name], b.kids[name]) if both else a.kids.get(name) or b.kids.get(name)
            )
            union.kids[name] = kid
        except Conflict as conflict:
            raise Conflict(f"{name}: {conflict}")


def kinds(nodes):
    """A list's elements as one tree, or as few as their orders allow: Mllama's layers are of two
    kinds, self-attention and cross-attention."""
    out = []
    for node in nodes:
        for i, kind in enumerate(out):
            try:
                out[i] = merge(kind, node)
                break
            except Conflict:
                pass
        else:
            out.append(node)
    return out


def as_list(kinds_of_elements):
    return {"*" + "|" * i: kind for i, kind in enumerate(kinds_of_elements)}


def is_plain_linear(module):
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def experts_of(module):
    """The names of a module's experts' weights, and of those that are held [in, out]."""
    generic = hasattr(module, "has_gate") and hasattr(module, "is_transposed")
    if generic and hasattr(type(module).forward, "__wrapped__"):
        names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
        return names, names if module.is_transposed else ()
    return EXPERTS.get(type(module).__name__)


@functools.lru_cache(None)
def sub_models(cls):
    """{attribute: auto class} of the sub-models that a class makes by their config's model_type."""
    source = inspect.getsource(sys.modules[cls.__module__])
    made = r"(?:self\.)?(\w+) = (AutoModel\w*)\.from_config\((?:config=)?(?:config\.)?\w*config"
    return dict(re.findall(made, source))


def tree_of(module, fp32, path="", root=None):
    """A module's tree; fp32: the pattern of names that the class keeps in fp32, or None."""
    root = root or module
    kind = "L" if is_plain_linear(module) else "E" if isinstance(module, nn.Embedding) else ""
    node = Node(kind)
    buffers = {
        name: buffer
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }
    own = {name: p for name, p in module._parameters.items() if p is not None} | buffers
    for name, tensor in own.items():
        full = f"{path}.{name}" if path else name
        node.leaves[name] = flags_of(module, name, tensor, bool(fp32 and fp32.search(full)))
    if len(node.leaves) > 1 and all(name.isdigit() for name in node.leaves):
        node.leaves = {"*": next(iter(node.leaves.values()))}  # a ParameterList
    for name, child in module._modules.items():
        if child is None:
            continue
        kid = tree_of(child, fp32, f"{path}.{name}" if path else name, root)
        if isinstance(child, PreTrainedModel) and name in sub_models(type(module)):
            causal_lm = sub_models(type(module))[name] == "AutoModelForCausalLM"
            at = config_path(root.config, child.config)
            kid.plug = f"@{at}/{'lm:' if causal_lm else ''}{child.config.model_type}"
        if not kid.empty():
            node.kids[name] = kid
    fold_list(module, node)
    node.leaf_orders, node.kid_orders = {tuple(node.leaves): 0}, {tuple(node.kids): 0}
    return node


def flags_of(module, name, tensor, kept_fp32):
    flags = []
    if name in module._buffers:
        flags.append("B")
    experts = experts_of(module)
    if experts and name in experts[0]:
        flags.append("XT" if name in experts[1] else "X")
    cls = type(module).__name__
    if cls in EXPERT_COUNTS and flags and flags[0].startswith("X"):
        flags.append("E=" + EXPERT_COUNTS[cls])
    if (cls, name) in OVERWRITTEN:
        flags.append(OVERWRITTEN[cls, name])
    if kept_fp32:
        flags.append("f")
    elif DTYPES[tensor.dtype]:
        flags.append(DTYPES[tensor.dtype])
    return ",".join(flags)


def fold_list(module, node):
    """Children 0, 1, 2, ... as one element, *, where one tree describes them all."""
    kids = node.kids
    if not kids or node.leaves or not all(name.isdigit() for name in kids):
        return
    listed = isinstance(module, nn.ModuleList)
    of_kinds = kinds(kids.values())
    alike = len({show(kid) for kid in kids.values()}) == 1 and len(kids) > 1
    one_kind = len(of_kinds) == 1 and (listed or alike)
    two_kinds = listed and len(of_kinds) == 2 and set(of_kinds[0].kids) != set(of_kinds[1].kids)
    if one_kind or two_kinds:
        node.kids = as_list(of_kinds)


def show(node):
    """A tree as the table's text."""
    words = []
    for name, flags in node.leaves.items():
        words.append(name + ("?" if name in node.optional else "") + (f":{flags}" if flags else ""))
    for name, kid in node.kids.items():
        if kid.empty():
            continue
        head = name + ("?" if name + "." in node.optional else "") + kid.plug
        words.append(head + show_kid(kid))
    return " ".join(words)


def show_kid(kid):
    plain = "weight" in kid.leaves and set(kid.leaves) <= {"weight", "bias"}
    if plain and not kid.kids and not any(kid.leaves.values()) and "weight" not in kid.optional:
        bias = "" if "bias" not in kid.leaves else "o" if "bias" in kid.optional else "b"
        return f"={kid.kind or 'N'}{bias}"
    return f"{'=' + kid.kind if kid.kind else ''}{{{show(kid)}}}"


def config_paths(config, path=""):
    """Every config in a config, with its path."""
    yield path, config
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            yield from config_paths(value, f"{path}.{name}" if path else name)


def config_path(root, config):
    """Where a config is in another: itself, or the one of its class."""
    paths = list(config_paths(root))
    for path, other in paths:
        if other is config:
            return path
    alike = [path for path, other in paths if type(other) is type(config)]
    return alike[0] if len(alike) == 1 else next((path for path in alike if path), "")
