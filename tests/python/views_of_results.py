"""Checks that strides of DTensors agree with their local tensors: reshape, view and flatten of results of torch's op_db, and
of gradients of their inputs, compared with regular tensors. A view may fail only where that of the regular tensor fails.

    python views_of_results.py [--ops add,mm] [--samples 2] [--seed 0] [--meshes 1,2,3,2x2] [--limit 100]

The inputs of each operator are slices of a larger tensor with permuted dimensions, and each of its results is viewed.
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
    """The tensor's values as a slice of a larger, permuted tensor: its gradient passes through reshapes."""
    if t.dim() == 0 or not t.requires_grad:
        return t
    order = draw.sample(range(t.dim()), t.dim())
    laid = t.permute(order)
    wide = torch.cat([laid, laid.detach()], -1)
    rows = wide.reshape(-1, wide.shape[-1]) if wide.numel() else wide
    part = rows.reshape(wide.shape).narrow(-1, 0, laid.shape[-1])
    return part.permute([order.index(d) for d in range(t.dim())])


def merged(sizes, draw):
    """The sizes with two adjacent dimensions merged, or one dimension split."""
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
    """An operator of op_db with sliced inputs and viewed results."""

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
    """Operators without those that DTensors refuse, or whose ATen kernel mishandles strides."""
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
    parser.add_argument("--limit", type=int, default=0, help="number of operators to sample with the seed; 0: all")
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
