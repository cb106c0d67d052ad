"""Compares samples of torch's own op_db on DTensors at random placements with regular tensors: forward, first and second
order gradients of all inputs, gradients of some results by some inputs, in-place, out=. With --errors: calls that op_db
lists as errors.

    python op_samples.py [--ops add,mm] [--samples 2] [--seed 0] [--meshes 2,2x2] [--limit 100] [--complex] [--errors]

A sample is equal, refused (the same error on every rank, where regular tensors have none), wrong (other values; or a result
or another class of error where torch has an error), or alone (an error on some ranks only). Prints all samples that are not
equal, and a summary.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import warnings

import torch
from torch.utils import _pytree

import dtensor
from dtensor import DTensor
from layouts import any_placements, mesh_of, ranks_of, report, spread

# Not comparable: uninitialized results, random results, and operators on memory.
SKIPPED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "bernoulli", "multinomial",
    "normal", "rand_like", "randn_like", "randint_like", "randint", "randn", "uniform", "cauchy", "exponential", "geometric",
    "log_normal", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "pca_lowrank", "svd_lowrank",
    "torch.ops.aten._safe_softmax.default", "to", "data_ptr", "resize_", "resize_as_",
}  # fmt: skip
# Determined only up to signs and order (eigenvectors, null spaces), or only by several results together.
INDEFINITE = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd", "symeig", "linalg.qr", "qr", "geqrf", "linalg.lu", "lu"}

# ATen's kernel, called directly, assumes row-major order for other strides.
ROW_MAJOR = {"torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"}


def draws():
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.name not in SKIPPED | INDEFINITE and not op.name.startswith("_refs")]


def dtype_of(op, complex_numbers=False):
    for dtype in (torch.complex128,) if complex_numbers else (torch.float64, torch.float32, torch.int64, torch.bool):
        if dtype in op.supported_dtypes("cpu"):
            return dtype
    return None


def is_inexact(t):
    return t.is_floating_point() or t.is_complex()


def tensors_of(tree):
    return [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def is_usable(tree):
    tensors = tensors_of(tree)
    return bool(tensors) and all(t.layout == torch.strided and not t.is_meta and t.dim() <= 64 for t in tensors)


def make_exact(t):
    """Rounds to multiples of 2^-40. Partial operands, which differ by integers, then add up to the exact value, and
    operators that compare values (searchsorted, histogram) agree. Tiny and large values stay unchanged."""
    if t.dtype != torch.float64 or t.is_meta or t.layout != torch.strided or not t.numel():
        return
    values = t.detach()
    rounded = torch.ldexp(torch.round(torch.ldexp(values, torch.tensor(40))), torch.tensor(-40))
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # elements may share memory
        t.data.copy_(torch.where((values.abs() < 1024) & (rounded != 0), rounded, values))


def samples_of(op, draw, count, dtype):
    """(arguments, keyword arguments) of some samples, with regular tensors that may require gradients."""
    if dtype is None:
        return []
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    except Exception:
        return []
    picked = draw.sample(found, min(count, len(found)))
    trees = [((s.input, *s.args), s.kwargs) for s in picked]
    for t in tensors_of(trees):
        make_exact(t)
    return [tree for tree in trees if is_usable(tree) and not tree[1].get("dropout_p")]  # dropout is random


def leaf_copy(t):
    return t.detach().clone().requires_grad_(t.requires_grad)


def call(op, tree, mode):
    """Results, and gradients of the order that the mode selects; an unused input has gradient None."""
    args, kwargs = tree
    if mode == "in place":
        target = args[0].detach().clone()
        op.get_inplace()(target, *args[1:], **kwargs)
        return [target], []
    results = op(*args, **kwargs)
    outs = tensors_of(results)
    if mode == "out":
        with torch.no_grad():
            given = torch.zeros_like(outs[0])
            op(*args, **kwargs, out=given)
        return [given], []
    inputs = [t for t in tensors_of(tree) if t.requires_grad]
    through = [t for t in outs if t.requires_grad and is_inexact(t)]
    if mode.startswith("partly"):
        return outs, gradients_of_some(through, inputs, random.Random(mode))
    return outs, gradients(through, inputs, mode == "second order")


def gradients_of_some(through, inputs, draw):
    """Gradients of some results only. Half the losses are sums, whose gradients have strides of 0."""
    if not inputs or not through:
        return []
    through = draw.sample(through, draw.randint(1, len(through)))
    loss = squares(through) if draw.random() < 0.5 else sum((t.real if t.is_complex() else t).sum() for t in through)
    return list(torch.autograd.grad(loss, inputs, allow_unused=True))


def gradients(through, inputs, second_order):
    """Gradients of the sum of squares and, for the second order, gradients of the sum of their squares."""
    if not inputs or not through:
        return []
    grads = list(torch.autograd.grad(squares(through), inputs, allow_unused=True, create_graph=second_order))
    if not second_order:
        return grads
    again = [g for g in grads if g is not None and g.requires_grad]
    return grads + list(torch.autograd.grad(squares(again), inputs, allow_unused=True) if again else [])


def squares(tensors):
    return sum((t * t.conj()).real.sum() if t.is_complex() else (t * t).sum() for t in tensors)


def modes_of(op, tree):
    modes = ["first order"]
    if op.supports_gradgrad and op.supports_autograd:
        modes.append("second order")
    if op.get_inplace() is not None and isinstance(tree[0][0], torch.Tensor):
        modes.append("in place")
    if op.supports_out:
        modes.append("out")
    if op.supports_autograd and any(t.requires_grad for t in tensors_of(tree)):
        modes.append("partly")
    return modes


def of_some(tree, draw, reorder):
    """Some inputs require no gradient, so that backward operators skip results; some have other strides."""
    trained = [t for t in tensors_of(tree) if t.requires_grad]
    kept = {id(t) for t in draw.sample(trained, draw.randint(1, len(trained)))}

    def other(t):
        order = draw.sample(range(t.dim()), t.dim())
        back = [order.index(d) for d in range(t.dim())]
        placed = t.detach().permute(order).contiguous().permute(back) if reorder and draw.random() < 0.5 else t.detach()
        return placed.requires_grad_(id(t) in kept)

    return _pytree.tree_map_only(torch.Tensor, other, tree)


def full(t):
    return None if t is None else (t.full_tensor() if isinstance(t, DTensor) else t).detach()


def tolerance_of(tree):
    """The tolerance of the least exact floating-point dtype."""
    kinds = {t.dtype for t in tensors_of(tree) if is_inexact(t)}
    if kinds & {torch.float16, torch.bfloat16}:
        return 2e-2
    return 1e-8 if kinds <= {torch.float64, torch.complex128} else 1e-4


def size_of(tensors):
    """The largest magnitude, at least 1, which bounds the rounding error after cancellation."""
    known = [t for t in tensors if t is not None and is_inexact(t) and t.numel() and bool(t.isfinite().all())]
    return max([1.0] + [float(t.abs().max()) for t in known])


def same(a, b, tolerance, size=1.0):
    if a is None or b is None:
        other = b if a is None else a
        return other is None or not bool(other.any())
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    wide = torch.complex128 if a.is_complex() else torch.float64
    return torch.allclose(a.to(wide), b.to(wide), rtol=tolerance, atol=tolerance * size, equal_nan=True)


def placer(mesh, draw, partial):
    """A function that places a regular tensor at random placements of the mesh."""

    def place(t):
        placements = any_placements(draw, t.shape, mesh, partial and t.is_floating_point())
        return spread(t.detach(), mesh, placements).requires_grad_(t.requires_grad)

    return place


def first_line(error):
    return (str(error).splitlines() or [""])[0][:200]


def judge(results, expected, near, label):
    """One rank's verdict on its results and gradients."""
    (outs, grads), (expected_outs, expected_grads) = [[[full(t) for t in ts] for ts in pair] for pair in (results, expected)]
    if len(outs) != len(expected_outs) or not all(same(a, b, near) for a, b in zip(outs, expected_outs)):
        return f"wrong: {label}"
    size = size_of(expected_grads)
    if not all(same(a, b, near, size) for a, b in zip(grads, expected_grads)):
        return f"wrong gradients: {label}"
    return "equal"


def on_ranks(op, trees, shape, seed):
    """One rank's verdict, or error text, for each tree."""
    mesh, verdicts = mesh_of(shape), []
    for index, (tree, mode, expected) in enumerate(trees):
        draw = random.Random(f"{op.name} {op.variant_test_name} {index} {seed}")
        place = placer(mesh, draw, mode != "in place")  # an in-place result has no Partial placement
        try:
            results = call(op, _pytree.tree_map_only(torch.Tensor, place, tree), mode)
            verdicts.append(judge(results, expected, tolerance_of((tree, expected)), mode))
        except Exception as error:
            verdicts.append(f"{type(error).__name__}: {mode}: {first_line(error)}")
            if "waits" in verdicts[-1] or "failed" in verdicts[-1]:
                break
    return verdicts


def together(by_rank):
    """(verdict, text) of each case from the verdicts of all ranks."""
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


def run_cases(shape, on_rank, *args):
    try:
        return together(dtensor.run(ranks_of(shape), on_rank, *args, timeout=120))
    except Exception as error:
        return [("alone", f"{type(error).__name__}: {first_line(error)}")]


def check(op, shape, seed, count, complex_numbers=False):
    """(verdict, text) of all samples: equal, wrong, refused or alone."""
    draw = random.Random(f"{op.name} {op.variant_test_name} {seed}")
    torch.manual_seed(seed)
    trees = []
    for tree in samples_of(op, draw, count, dtype_of(op, complex_numbers)):
        for mode in modes_of(op, tree):
            if mode == "partly":
                tree, mode = of_some(tree, draw, op.name not in ROW_MAJOR), f"partly {draw.randrange(1000)}"
            try:
                outs, grads = call(op, _pytree.tree_map_only(torch.Tensor, leaf_copy, tree), mode)
            except Exception:
                continue  # fails on one device, too
            trees.append((tree, mode, ([full(t) for t in outs], [full(t) for t in grads])))
    return run_cases(shape, on_ranks, op, trees, shape, seed) if trees else []


# An index out of range is an error only on ranks that have all of the index, and these samples may shard the index.
OF_THE_DATA = {"gather", "scatter", "scatter_add", "scatter_reduce", "take_along_dim"}
# ATen's kernel for meta tensors, which runs first, raises another class of error than its CPU kernel.
OTHER_CLASS = {"narrow_copy"}


def error_on_ranks(op, cases, shape, seed):
    mesh, verdicts = mesh_of(shape), []
    for index, (tree, expected) in enumerate(cases):
        place = placer(mesh, random.Random(f"{op.name} {index} {seed}"), True)
        args, kwargs = _pytree.tree_map_only(torch.Tensor, place, tree)
        try:
            op(*args, **kwargs)
            verdicts.append(f"wrong: no error, but torch raises {expected.__name__}")
        except Exception as error:
            kind, known = type(error).__name__, isinstance(error, expected) or op.name in OTHER_CLASS
            verdicts.append("equal" if known else f"wrong: {kind} for {expected.__name__}: {first_line(error)}")
            if "waits" in str(error):
                verdicts[-1] = f"alone: {first_line(error)}"
                break
    return verdicts


def check_errors(op, shape, seed, count):
    """(verdict, text) of calls that torch rejects on regular tensors."""
    if op.error_inputs_func is None:
        return []
    try:
        found = list(op.error_inputs("cpu"))
    except Exception:
        return []
    cases = []
    for case in random.Random(seed).sample(found, min(count, len(found))):
        tree = ((case.sample_input.input, *case.sample_input.args), case.sample_input.kwargs)
        if not is_usable(tree):
            continue
        args, kwargs = _pytree.tree_map_only(torch.Tensor, leaf_copy, tree)
        try:
            op(*args, **kwargs)
        except Exception as error:
            cases.append((tree, type(error)))
    found = run_cases(shape, error_on_ranks, op, cases, shape, seed) if cases else []
    return [("equal", text) if v == "alone" and op.name in OF_THE_DATA and "equal" in text else (v, text) for v, text in found]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--meshes", default="2,2x2")
    parser.add_argument("--limit", type=int, default=0, help="number of operators to sample with the seed; 0: all")
    parser.add_argument("--complex", action="store_true", help="samples with complex numbers")
    parser.add_argument("--errors", action="store_true", help="calls that torch rejects")
    parser.add_argument("--after", default="", help="only operators whose names sort after this one")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = set(filter(None, flags.ops.split(",")))
    ops = [op for op in draws() if (not wanted or op.name in wanted) and op.name > flags.after]
    if flags.limit:
        ops = random.Random(flags.seed).sample(ops, min(flags.limit, len(ops)))

    def verdicts(op, shape):
        if flags.errors:
            return check_errors(op, shape, flags.seed, flags.samples)
        return check(op, shape, flags.seed, flags.samples, flags.complex)

    return report(ops, lambda op: ".".join(filter(None, (op.name, op.variant_test_name))), flags.meshes, verdicts)


if __name__ == "__main__":
    sys.exit(main())
