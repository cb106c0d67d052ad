"""Compares samples of torch's own module_db, with parameters, buffers and inputs at random placements, with regular tensors:
results, buffers, first and second order gradients, in training and evaluation mode.

    python module_samples.py [--modules nn.Linear,nn.LSTM] [--samples 2] [--seed 0] [--meshes 2,2x2]

Verdicts and the summary are those of op_samples.py.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import warnings

import torch
from torch import nn
from torch.utils import _pytree

from layouts import mesh_of, report
from op_samples import first_line, full, gradients, is_inexact, is_usable, judge, leaf_copy, placer, run_cases, tensors_of, tolerance_of

RANDOM = {"nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"}  # random pooling windows


def draws():
    from torch.testing._internal.common_modules import module_db

    return [module for module in module_db if module.name not in RANDOM]


def without_dropout(module):
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, (nn.MultiheadAttention, nn.RNNBase)):
            part.dropout = 0.0
    return module


def samples_of(info, draw, count, training):
    """(module, (arguments, keyword arguments)) of some samples, with regular tensors that may require gradients."""
    found = list(info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training))
    usable = []
    for sample in draw.sample(found, min(count, len(found))):
        given = (sample.forward_input.args, sample.forward_input.kwargs)
        if not is_usable(given):
            continue
        made = sample.constructor_input
        module = without_dropout(info.module_cls(*made.args, **made.kwargs).double().train(training))
        usable.append((module, given))
    return usable


def call(module, given, second_order):
    """Results and buffers, gradients of inputs and parameters."""
    args, kwargs = given
    outs = [t for t in tensors_of(module(*args, **kwargs))]
    inputs = [t for t in tensors_of(given) if t.requires_grad and is_inexact(t)]
    inputs += [p for p in module.parameters() if p.requires_grad]
    return outs + list(module.buffers()), gradients(outs, inputs, second_order)


def place_module(module, place):
    """Places parameters and buffers with `place`; a tensor that is shared between modules stays shared."""
    made = {}
    for part in module.modules():
        for entries, wrap in ((part._parameters, nn.Parameter), (part._buffers, lambda t, _: t)):
            for key, t in entries.items():
                if t is not None and not isinstance(t, nn.parameter.UninitializedTensorMixin):
                    if id(t) not in made:
                        made[id(t)] = wrap(place(t.detach()), t.requires_grad)
                    entries[key] = made[id(t)]
    return module


def on_ranks(info, cases, shape, seed):
    mesh, verdicts = mesh_of(shape), []
    for index, (module, given, second_order, expected, label) in enumerate(cases):
        draw = random.Random(f"{info.name} {index} {seed}")
        try:
            placed = place_module(copy.deepcopy(module), placer(mesh, draw, False))
            results = call(placed, _pytree.tree_map_only(torch.Tensor, placer(mesh, draw, True), given), second_order)
            verdicts.append(judge(results, expected, tolerance_of((given, expected)), label))
        except Exception as error:
            verdicts.append(f"{type(error).__name__}: {label}: {first_line(error)}")
            if "waits" in verdicts[-1] or "failed" in verdicts[-1]:
                break
    return verdicts


def check(info, shape, seed, count):
    """(verdict, text) of all samples: equal, wrong, refused or alone."""
    draw = random.Random(f"{info.name} {seed}")
    torch.manual_seed(seed)
    cases = []
    for training in (True, False):
        for module, given in samples_of(info, draw, count, training):
            second_order = info.supports_gradgrad
            label = f"{'train' if training else 'eval'}{', second order' if second_order else ''}"
            try:
                if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
                    with torch.no_grad():
                        module(*given[0], **given[1])
                results = call(copy.deepcopy(module), _pytree.tree_map_only(torch.Tensor, leaf_copy, given), second_order)
            except Exception:
                continue  # fails on one device, too
            cases.append((module, given, second_order, [[full(t) for t in ts] for ts in results], label))
    return run_cases(shape, on_ranks, info, cases, shape, seed) if cases else []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", default="")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--meshes", default="2,2x2")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = set(filter(None, flags.modules.split(",")))
    modules = [module for module in draws() if not wanted or module.name in wanted]
    return report(modules, lambda info: info.name, flags.meshes,
                  lambda info, shape: check(info, shape, flags.seed, flags.samples))


if __name__ == "__main__":
    sys.exit(main())
