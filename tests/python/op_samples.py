"""Samples of torch's own op_db on DTensors at random placements beside plain tensors: forward, gradients of the
first and second order, in place, out=.

    python op_samples.py [--ops add,mm] [--samples 2] [--seed 0] [--meshes 2,2x2] [--limit 100]

An operator's sample counts as equal, refused (the same error on every rank, which the call on plain tensors has not), wrong
(other values), or alone (ranks disagree on whether there is an error). Prints all but the equal ones, and a summary.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings

import torch
from torch.utils import _pytree

import dtensor
from dtensor import DTensor
from layouts import mesh_of, random_placements, ranks_of, spread

# Results without content, random ones, and what is about memory: nothing to compare with.
SKIPPED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "bernoulli", "multinomial",
    "normal", "rand_like", "randn_like", "randint_like", "randint", "randn", "uniform", "cauchy", "exponential", "geometric",
    "log_normal", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "pca_lowrank", "svd_lowrank",
    "torch.ops.aten._safe_softmax.default", "to", "data_ptr", "resize_", "resize_as_",
}  # fmt: skip
# Eigenvectors, null spaces, ...: right up to signs and order, or on the whole of several results.
INDEFINITE = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd", "symeig", "linalg.qr", "qr", "geqrf", "linalg.lu", "lu"}


def draws():
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.name not in SKIPPED | INDEFINITE and not op.name.startswith("_refs")]


def dtype_of(op):
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool):
        if dtype in op.supported_dtypes("cpu"):
            return dtype
    return None


def samples_of(op, draw, count):
    """(arguments, keyword arguments) of some samples, plain, with whether they want gradients."""
    dtype = dtype_of(op)
    if dtype is None:
        return []
    grad = op.supports_autograd and dtype.is_floating_point
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    except Exception:
        return []
    picked = draw.sample(found, min(count, len(found)))
    usable = []
    for sample in picked:
        tree = ((sample.input, *sample.args), sample.kwargs)
        tensors = [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
        if tensors and all(t.layout == torch.strided and not t.is_complex() for t in tensors):
            usable.append(tree)
    return usable


def leaf_copy(t):
    return t.detach().clone().requires_grad_(t.requires_grad)


def call(op, tree, mode):
    """Results and gradients of the first and second order as the mode has them, None where it has none."""
    args, kwargs = tree
    if mode == "in place":
        target = args[0].detach().clone()
        op.get_inplace()(target, *args[1:], **kwargs)
        return [target], []
    results = op(*args, **kwargs)
    outs = [t for t in _pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    if mode == "out":
        with torch.no_grad():
            given = torch.zeros_like(outs[0])
            op(*args, **kwargs, out=given)
        return [given], []
    inputs = [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]
    through = [t for t in outs if t.requires_grad and t.is_floating_point()]
    if not inputs or not through:
        return outs, []
    total = sum((t * t).sum() for t in through)
    grads = list(torch.autograd.grad(total, inputs, allow_unused=True, create_graph=mode == "second order"))
    if mode != "second order":
        return outs, grads
    again = [g for g in grads if g is not None and g.requires_grad]
    second = torch.autograd.grad(sum((g * g).sum() for g in again), inputs, allow_unused=True) if again else []
    return outs, grads + list(second)


def modes_of(op, tree):
    modes = ["first order"]
    if op.supports_gradgrad and op.supports_autograd:
        modes.append("second order")
    if op.get_inplace() is not None and isinstance(tree[0][0], torch.Tensor):
        modes.append("in place")
    if op.supports_out:
        modes.append("out")
    return modes


def whole(t):
    return None if t is None else (t.full_tensor() if isinstance(t, DTensor) else t).detach()


def tolerance_of(tree):
    """That of the least exact floating-point tensor."""
    kinds = {t.dtype for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.is_floating_point()}
    if kinds & {torch.float16, torch.bfloat16}:
        return 2e-2
    return 1e-8 if kinds <= {torch.float64} else 1e-4


def same(a, b, tolerance):
    if a is None or b is None:
        other = b if a is None else a
        return other is None or not bool(other.any())
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def on_ranks(op, trees, shape, seed):
    """For each tree: a rank's verdict, an error's text among them."""
    mesh, verdicts = mesh_of(shape), []
    for index, (tree, mode, expected) in enumerate(trees):
        draw = random.Random(f"{op.name} {op.variant_test_name} {index} {seed}")
        partial = mode != "in place"  # what a share is written into stays one

        def place(t):
            placements = random_placements(draw, t.dim(), mesh.ndim, partial and t.is_floating_point())
            return spread(t.detach(), mesh, placements).requires_grad_(t.requires_grad)

        try:
            outs, grads = call(op, _pytree.tree_map_only(torch.Tensor, place, tree), mode)
            outs, grads = [whole(t) for t in outs], [whole(t) for t in grads]
            near = tolerance_of((tree, expected))
            fine = len(outs) == len(expected[0]) and all(same(a, b, near) for a, b in zip(outs, expected[0]))
            fine_grads = all(same(a, b, near) for a, b in zip(grads, expected[1]))
            what = "equal" if fine and fine_grads else "wrong" if not fine else "wrong gradients"
            verdicts.append(what if what == "equal" else f"{what}: {mode}")
        except Exception as error:
            text = str(error).splitlines()
            verdicts.append(f"{type(error).__name__}: {mode}: {text[0][:200] if text else ''}")
            if "waits" in verdicts[-1] or "failed" in verdicts[-1]:
                break
    return verdicts


def check(op, shape, seed, count):
    """(sample index, verdict) of all samples: equal, wrong, refused or alone, with a text."""
    draw = random.Random(f"{op.name} {op.variant_test_name} {seed}")
    torch.manual_seed(seed)
    trees = []
    for tree in samples_of(op, draw, count):
        for mode in modes_of(op, tree):
            try:
                outs, grads = call(op, _pytree.tree_map_only(torch.Tensor, leaf_copy, tree), mode)
            except Exception:
                continue  # on one device too
            trees.append((tree, mode, ([whole(t) for t in outs], [whole(t) for t in grads])))
    if not trees:
        return []
    try:
        by_rank = dtensor.run(ranks_of(shape), on_ranks, op, trees, shape, seed, timeout=120)
    except Exception as error:
        return [("alone", f"{type(error).__name__}: {str(error)[:200]}")]
    found = []
    for verdicts in zip(*by_rank):
        kinds = {v.split(":")[0] for v in verdicts}
        if len(kinds) > 1:
            found.append(("alone", " | ".join(dict.fromkeys(verdicts))))
        elif verdicts[0].split(":")[0] in ("equal", "wrong", "wrong gradients"):
            found.append((verdicts[0].split(":")[0].split()[0], verdicts[0]))
        else:
            found.append(("refused", verdicts[0]))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--meshes", default="2,2x2")
    parser.add_argument("--limit", type=int, default=0, help="so many operators, drawn by the seed")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = set(filter(None, flags.ops.split(",")))
    ops = [op for op in draws() if not wanted or op.name in wanted]
    if flags.limit:
        ops = random.Random(flags.seed).sample(ops, min(flags.limit, len(ops)))
    counts = {"equal": 0, "refused": 0, "wrong": 0, "alone": 0}
    for op in ops:
        for mesh in flags.meshes.split(","):
            for verdict, text in check(op, tuple(int(n) for n in mesh.split("x")), flags.seed, flags.samples):
                counts[verdict] += 1
                if verdict != "equal":
                    print(f"{verdict} {op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name} {mesh}: {text}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()), f"of {len(ops)} operators")
    return 1 if counts["wrong"] or counts["alone"] else 0


if __name__ == "__main__":
    sys.exit(main())
