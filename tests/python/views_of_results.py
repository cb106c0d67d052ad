"""What a DTensor says of its strides agrees with its local part: reshape, view and flatten of what torch's op_db gives, and of
its inputs' gradients, beside plain tensors. A view may refuse only where that of the plain tensor does.

    python views_of_results.py [--ops add,mm] [--samples 2] [--seed 0] [--meshes 1,2,3,2x2] [--limit 100]

Each operator's inputs are slices of a larger tensor, in another order of dimensions, and each of its results is viewed
otherwise.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings

import torch
from torch.utils import _pytree

import op_samples
from layouts import report


def slice_of_larger(t, draw):
    """The tensor's values as part of a fused one, laid out in another order: its gradient comes back through reshapes."""
    if t.dim() == 0 or not t.requires_grad:
        return t
    order = draw.sample(range(t.dim()), t.dim())
    laid = t.permute(order)
    wide = torch.cat([laid, laid.detach()], -1)
    rows = wide.reshape(-1, wide.shape[-1]) if wide.numel() else wide
    part = rows.reshape(wide.shape).narrow(-1, 0, laid.shape[-1])
    return part.permute([order.index(d) for d in range(t.dim())])


def merged(sizes, draw):
    """The sizes with two neighbouring dimensions in one, or one in two."""
    sizes = list(sizes)
    d = draw.randrange(len(sizes))
    factors = [f for f in range(2, sizes[d]) if sizes[d] % f == 0]
    if factors and (len(sizes) == 1 or draw.random() < 0.3):
        f = draw.choice(factors)
        return sizes[:d] + [f, sizes[d] // f] + sizes[d + 1 :]
    d = draw.randrange(max(1, len(sizes) - 1))
    return sizes[:d] + [sizes[d] * sizes[d + 1]] + sizes[d + 2 :] if len(sizes) > 1 else sizes


def viewed(t, how, draw):
    if t.dim() > 1 and draw.random() < 0.5:
        t = t.transpose(*draw.sample(range(t.dim()), 2))
    if how == "flatten":
        first = draw.randrange(max(1, t.dim()))
        return t.flatten(first, draw.randrange(first, max(1, t.dim())))
    sizes = merged(t.shape, draw) if t.dim() and draw.random() < 0.7 else [t.numel()]
    return t.reshape(sizes) if how == "reshape" else t.view(sizes)


class Viewed:
    """An operator of op_db whose inputs and results are viewed otherwise."""

    supports_out = supports_gradgrad = False

    def __init__(self, op, how, seed):
        self.op, self.how, self.seed = op, how, seed

    def __getattr__(self, name):
        return getattr(self.op, name)

    def get_inplace(self):
        return None

    def __call__(self, *args, **kwargs):
        draw = random.Random(f"{self.op.name} {self.how} {self.seed}")
        args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda t: slice_of_larger(t, draw), (args, kwargs))
        return [viewed(t, self.how, draw) for t in op_samples.tensors_of(self.op(*args, **kwargs))]


def draws():
    """What is refused on DTensors, or lies on one device in an order that ATen gets wrong, is left out."""
    return [op for op in op_samples.draws() if op.name not in op_samples.ROW_MAJOR | {"to_sparse"}]


HOWS = ("reshape", "flatten", "view")


def check(op, shape, seed, count):
    """(verdict, text) of all samples and views of an operator."""
    found = []
    for how in HOWS:
        found += [(v, f"{how}: {text}") for v, text in op_samples.check(Viewed(op, how, seed), shape, seed, count)]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--meshes", default="2,3,2x2")
    parser.add_argument("--limit", type=int, default=0, help="so many operators, drawn by the seed")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = set(filter(None, flags.ops.split(",")))
    ops = [op for op in draws() if not wanted or op.name in wanted]
    if flags.limit:
        ops = random.Random(flags.seed).sample(ops, min(flags.limit, len(ops)))
    name = lambda op: ".".join(filter(None, (op.name, op.variant_test_name)))  # noqa: E731
    return report(ops, name, flags.meshes, lambda op, shape: check(op, shape, flags.seed, flags.samples))


if __name__ == "__main__":
    sys.exit(main())
