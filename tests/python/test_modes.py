"""DTensors in PyTorch's tools: dispatch modes see the operators of one device, and selective checkpoints and FlopCounterMode
work."""

import collections
import copy
import functools
import itertools
import random
import unittest
import warnings

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import dtensor
import op_samples
from dtensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from layouts import any_placements, mesh_of, trials

aten = torch.ops.aten
attention = nn.functional.scaled_dot_product_attention


class Seen(TorchDispatchMode):
    """Records the operators that a mode sees, and those without DTensors. Saved tensors may call detach: it is left out."""

    def __init__(self):
        super().__init__()
        self.names, self.local = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is not aten.detach.default:
            self.names.append(str(func))
        if not any(isinstance(t, DTensor) for t in op_samples.tensors_of((args, kwargs, out))):
            self.local.append(str(func))
        return out


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


MODULES = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8, bias=False)),
    "attention": Attention,
    "convolution": lambda: nn.Conv1d(4, 4, 3, padding=1),
    "norm": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)),
}
KEPT = {
    "products": lambda op: op in (aten.mm.default, aten.addmm.default, aten.convolution.default),
    "attention": lambda op: op is aten._scaled_dot_product_flash_attention_for_cpu.default,
    "all": lambda op: True,
    "none": lambda op: False,
}


def made(name):
    torch.manual_seed(0)
    return MODULES[name]().double()


def placed(module, mesh, placements):
    for part in module.modules():
        for name, p in list(part._parameters.items()):
            if p is not None:
                part._parameters[name] = nn.Parameter(distribute_tensor(p.detach(), mesh, placements(p)))
    return module


class Modes(unittest.TestCase):
    def test_modes_see_the_operators_of_one_device(self):
        warnings.simplefilter("ignore")
        try:
            ops = op_samples.draws()
        except ImportError as error:  # torch's own tests need additional packages
            self.skipTest(str(error))

        def seen(op, tree):
            with Seen() as mode:
                op_samples.call(op, tree, "first order")
            return mode

        def on_rank(op, tree):
            place = op_samples.placer(mesh_of((2,)), random.Random(0), True)
            tree = _pytree.tree_map_only(torch.Tensor, place, tree)
            return [seen(op, tree) for _ in range(2)]

        compared = 0
        for op in random.Random(1).sample(ops, trials(60)):
            for tree in op_samples.samples_of(op, random.Random(0), 1, op_samples.dtype_of(op)):
                try:
                    one = seen(op, _pytree.tree_map_only(torch.Tensor, op_samples.leaf_copy, tree))
                except Exception:
                    continue
                for first, second in dtensor.run(2, on_rank, op, tree):
                    self.assertEqual(first.names, second.names, op.name)
                    if "mish" not in op.name:  # autograd decomposes its derivative for backends other than the CPU
                        self.assertEqual(second.names, one.names, op.name)
                        self.assertFalse(collections.Counter(second.local) - collections.Counter(one.local), op.name)
                compared += 1
        self.assertGreater(compared, trials(60) // 2)

    def test_modes_do_not_see_internal_operators(self):
        def on_rank():
            mesh = mesh_of((2,))
            with Seen() as mode:
                x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)]).requires_grad_()
                y = x.redistribute(placements=[Replicate()]).redistribute(placements=[Shard(1)])
                full, part = y.full_tensor(), y.to_local(grad_placements=[Shard(1)])
                z = DTensor.from_local(part, mesh, [Partial()])
            return [name for name in mode.names if "ones" not in name], full.shape, z.placements

        for names, _, _ in dtensor.run(2, on_rank):
            self.assertEqual(names, [])

    def test_modes_do_not_change_the_first_call_of_an_operator(self):
        def on_rank():
            mask = distribute_tensor(torch.tensor([True, False, True]), mesh_of((2,)), [Shard(0)])
            with Seen():  # the result's size depends on values, so no Python meta kernel runs
                return distribute_tensor(torch.arange(3.0), mesh_of((2,)), [Shard(0)])[mask].full_tensor().tolist()

        self.assertEqual(dtensor.run(2, on_rank), [[0.0, 2.0]] * 2)

    def test_selective_checkpoints_equal_one_device(self):
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1)).double()

        def run(module, x, kept, seen):
            def policy(ctx, op, *args, **kwargs):
                seen.append((ctx.is_recompute, str(op)))
                return CheckpointPolicy.MUST_SAVE if kept(op) else CheckpointPolicy.PREFER_RECOMPUTE

            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            y = checkpoint(module, x, use_reentrant=False, context_fn=contexts)
            y.square().sum().backward()
            return [y, x.grad, *(p.grad for p in module.parameters())]

        def on_rank(made, kept, dim):
            mesh, draw, module = mesh_of((2,)), random.Random(dim), copy.deepcopy(made)
            want = run(copy.deepcopy(module), x.clone().requires_grad_(), kept, one := [])
            module = placed(module, mesh, lambda p: any_placements(draw, p.shape, mesh))
            for _ in range(2):
                module.zero_grad()
                given = distribute_tensor(x, mesh, [Replicate() if dim < 0 else Shard(dim)]).requires_grad_()
                found = run(module, given, kept, several := [])
                for a, b in zip(found, want):
                    torch.testing.assert_close(a.full_tensor(), b)
                self.assertEqual(several, one)

        for name, kept, dim in itertools.product(MODULES, KEPT.values(), range(-1, 3)):
            with self.subTest(name=name, dim=dim):
                dtensor.run(2, on_rank, made(name), kept, dim)

    def test_flop_counter_counts_a_ranks_share(self):
        def count(fn):
            with FlopCounterMode(display=False) as counter:
                fn()
            return counter.get_total_flops()

        def of(*sizes):
            return torch.ones(*sizes, dtype=torch.float64)

        # On two ranks: function, sizes, placements, and the number of ranks that share the work.
        cases = [
            (torch.mm, [(4, 6), (6, 8)], [Shard(0), Replicate()], 2),
            (torch.mm, [(4, 6), (6, 8)], [Replicate(), Shard(1)], 2),
            (torch.mm, [(4, 6), (6, 8)], [Shard(1), Shard(0)], 2),
            (torch.mm, [(4, 6), (6, 8)], [Replicate(), Replicate()], 1),
            (torch.mm, [(4, 6), (6, 8)], [Partial(), Replicate()], 1),
            (torch.bmm, [(2, 4, 6), (2, 6, 8)], [Shard(0), Shard(0)], 2),
            (nn.functional.linear, [(2, 4, 6), (8, 6), (8,)], [Shard(1), Replicate(), Replicate()], 2),
            (nn.functional.linear, [(2, 4, 6), (8, 6), (8,)], [Replicate(), Shard(0), Shard(0)], 2),
            (nn.functional.conv1d, [(2, 4, 6), (8, 4, 3)], [Shard(0), Replicate()], 2),
            (nn.functional.conv1d, [(2, 4, 6), (8, 4, 3)], [Replicate(), Shard(0)], 2),
            (attention, [(2, 4, 6, 8)] * 3, [Shard(0)] * 3, 2),
            (attention, [(2, 4, 6, 8)] * 3, [Shard(1)] * 3, 2),
            (attention, [(2, 4, 6, 8)] * 3, [Shard(2)] * 3, 2),
        ]

        def passes(fn, tensors):
            def run():
                fn(*tensors).square().sum().backward()

            return count(lambda: fn(*tensors)), count(run)

        def on_rank():
            mesh = mesh_of((2,))
            for fn, sizes, placements, ranks in cases:
                one = passes(fn, [of(*s).requires_grad_() for s in sizes])
                given = [distribute_tensor(of(*s), mesh, [p]).requires_grad_() for s, p in zip(sizes, placements)]
                for _ in range(2):
                    self.assertEqual(passes(fn, given), tuple(n // ranks for n in one), f"{fn} {placements}")

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
