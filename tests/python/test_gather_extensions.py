"""fsdp_pre_all_gather and fsdp_post_all_gather: what a unit gathers, and wrapper subclasses as local tensors."""

import copy
import itertools
import math
import tempfile
import unittest

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import dtensor
from dtensor import DTensor, Replicate, Shard
from dtensor.fsdp import MixedPrecisionPolicy, fully_shard


class Pair(torch.Tensor):
    """Two tensors; each operator runs on both."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, device=a.device
        )

    def __init__(self, a, b):
        assert (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())
        self.a, self.b = a, b

    def __repr__(self):
        return f"Pair({self.a}, {self.b})"

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first, second = (
            func(*pytree.tree_map_only(Pair, pick, args), **pytree.tree_map_only(Pair, pick, kwargs))
            for pick in (lambda pair: pair.a, lambda pair: pair.b)
        )
        flat, spec = pytree.tree_flatten(first)
        both = [cls(x, y) if isinstance(x, torch.Tensor) else x for x, y in zip(flat, pytree.tree_leaves(second))]
        return return_and_correct_aliasing(func, args, kwargs, pytree.tree_unflatten(both, spec))


def _pair_of_gathered(self, gathered, metadata, param_dtype, *, out=None):
    assert metadata == "metadata"
    a, b = gathered
    if out is None:
        return type(self)(a, b).to(param_dtype), (a, b)
    assert isinstance(out, Pair) and out.dtype == param_dtype
    if a.dtype == param_dtype:
        assert out.a.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
        assert out.b.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    else:
        out.a.copy_(a)
        out.b.copy_(b)


class OneArgument(Pair):
    def fsdp_pre_all_gather(self, mesh):
        return (self.a, self.b), "metadata"

    fsdp_post_all_gather = _pair_of_gathered


class FiveArguments(Pair):
    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        assert isinstance(module, nn.Linear) and mesh.ndim == 1
        assert (outer_size, outer_stride) == (module.weight.shape, module.weight.stride())
        assert isinstance(mp_policy, MixedPrecisionPolicy)
        return (self.a, self.b), "metadata"

    fsdp_post_all_gather = _pair_of_gathered


class Narrow(torch.Tensor):
    """Gathered in bfloat16."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, data.stride(), data.storage_offset(), dtype=data.dtype)

    def __init__(self, data):
        self.data_ = data

    def __tensor_flatten__(self):
        return ["data_"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Narrow(inner["data_"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        take = lambda wrapper: wrapper.data_
        result = func(*pytree.tree_map_only(Narrow, take, args), **pytree.tree_map_only(Narrow, take, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, Narrow, result)

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        assert mesh.ndim == 1
        rows = math.ceil(outer_size[0] / mesh.size())
        padded = torch.zeros(rows, *outer_size[1:], dtype=torch.bfloat16)
        padded[: self.data_.size(0)].copy_(self.data_)
        return (padded,), None

    def fsdp_post_all_gather(self, gathered, metadata, param_dtype, *, out=None):
        (tensor,) = gathered
        assert tensor.dtype == torch.bfloat16
        if out is not None:
            out.copy_(tensor)
            return None
        upcast = tensor.to(param_dtype)
        return upcast, (tensor, upcast)


class Perceptron(nn.Module):
    def __init__(self, width, hidden, bias=False):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


torch.manual_seed(0)
NET = nn.Sequential(*(Perceptron(8, 12) for _ in range(3)))
UNEVEN = Perceptron(3, 9, bias=True)
WAYS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "Adam of single tensors": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def wrapped(net, wrap):
    """A copy whose weights are wrappers."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(wrap(module.weight.detach()))
    return net


def pair_of(cls):
    return lambda tensor: cls(tensor.clone(), tensor.clone())


def sharded(net, mesh, **options):
    for part in (*net, net):
        fully_shard(part, mesh=mesh, **options)
    return net


def rows(rank, width=8):
    return torch.randn(2, width, generator=torch.Generator().manual_seed(rank))


def step(net, optimizer, batches, set_to_none=True):
    (sum(net(x).sum() for x in batches) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none)


class WrapperSubclasses(unittest.TestCase):
    def train(self, ranks, cls, optimizer, **options):
        """Three steps equal those of one device, in both tensors of each pair."""

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (ranks,))
            net, one = sharded(wrapped(NET, pair_of(cls)), mesh, **options), copy.deepcopy(NET)
            mine, its = optimizer(net.parameters()), optimizer(one.parameters())
            for number in range(3):
                step(net, mine, [rows(dtensor.rank())], set_to_none=number != 1)
                step(one, its, [rows(rank) for rank in range(ranks)])
                for p, q in zip(net.parameters(), one.parameters()):
                    self.assertIsInstance(p, DTensor)
                    self.assertIs(type(p._local_tensor), cls)
                    full = dtensor.distribute_tensor(q.detach(), mesh, [Shard(0)]).to_local()
                    torch.testing.assert_close(p._local_tensor.a, full)
                    torch.testing.assert_close(p._local_tensor.b, full)
            stats = net.fsdp_stats()
            self.assertEqual(stats["gathered_bytes"], 0)
            self.assertEqual((stats["all_gathers"], stats["reduce_scatters"]), (16 if options["reshard_after_forward"] else 9, 9 if ranks > 1 else 0))

        dtensor.run(ranks, on_rank)

    def test_steps_equal_one_device(self):
        for cls, reshard in itertools.product((OneArgument, FiveArguments), (True, False)):
            self.train(2, cls, WAYS["Adam"], reshard_after_forward=reshard)
        for optimizer in WAYS.values():
            self.train(4, OneArgument, optimizer, reshard_after_forward=True)
        self.train(1, OneArgument, WAYS["Adam"], reshard_after_forward=True)

    def test_from_the_meta_device_with_mixed_precision(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (4,))
            for reshard in (True, False):
                with torch.device("meta"):
                    net = wrapped(nn.Sequential(*(Perceptron(8, 12) for _ in range(2))), pair_of(FiveArguments))
                sharded(net, mesh, reshard_after_forward=reshard, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
                net.to_empty(device="cpu")
                for p in net.parameters():
                    nn.init.trunc_normal_(p)
                optimizer = WAYS["Adam"](net.parameters())
                for _ in range(3):
                    y = net(rows(dtensor.rank()))
                    self.assertEqual(y.dtype, torch.bfloat16)
                    y.sum().backward()
                    self.assertTrue(all(p.grad.dtype == torch.float32 for p in net.parameters()))
                    optimizer.step()
                    optimizer.zero_grad()

        dtensor.run(4, on_rank)

    def test_uneven_shards_are_padded(self):
        def on_rank(ranks):
            mesh = dtensor.init_device_mesh("cpu", (ranks,))
            for reshard in (True, False):
                one = copy.deepcopy(UNEVEN)
                net = fully_shard(wrapped(one, Narrow), mesh=mesh, reshard_after_forward=reshard)
                for linear in (one.inner, one.outer):
                    linear.weight.data = linear.weight.data.bfloat16().float()
                torch.testing.assert_close(net(rows(0, 3)), one(rows(0, 3)))
                optimizer = WAYS["AdamW, fused"](net.parameters())
                for _ in range(2):
                    step(net, optimizer, [rows(dtensor.rank(), 3)])
                self.assertEqual(net.inner.weight._local_tensor.shape, net.inner.weight._local_tensor.data_.shape)

        for ranks in (2, 4, 8):
            dtensor.run(ranks, on_rank, ranks)


class HooksOfTensors(unittest.TestCase):
    """Hooks that a program sets on local tensors, which may be regular ones."""

    def set_hooks(self, net, pre):
        def post(local, gathered, metadata, param_dtype, *, out=None):
            (tensor,) = gathered
            if out is not None:
                out.copy_(tensor)
                return None
            made = tensor.to(param_dtype)
            return made, (tensor, made)

        for name, p in net.named_parameters():
            if "weight" in name:
                local = p._local_tensor
                local.fsdp_pre_all_gather, local.fsdp_post_all_gather = pre.__get__(local), post.__get__(local)

    def test_set_after_to_empty(self):
        def on_rank():
            mesh, calls = dtensor.init_device_mesh("cpu", (4,)), []

            def pre(local, mesh, outer_size, outer_stride, module, mp_policy):
                calls.append(mesh.size())
                return (local.to(torch.bfloat16),), None

            with torch.device("meta"):
                net = wrapped(nn.Sequential(*(Perceptron(8, 12) for _ in range(2))), pair_of(Pair))
            sharded(net, mesh).to_empty(device="cpu")
            for p in net.parameters():
                nn.init.trunc_normal_(p)
            self.set_hooks(net, pre)
            optimizer = WAYS["Adam"](net.parameters())
            for _ in range(3):
                step(net, optimizer, [rows(dtensor.rank())])
            self.assertEqual(set(calls), {4})

        dtensor.run(4, on_rank)

    def test_of_regular_tensors(self):
        """Gathers bfloat16 (half the bytes), and computes in the parameter's dtype with rounded values."""

        def on_rank(ranks):
            mesh = dtensor.init_device_mesh("cpu", (ranks,))
            net, one = sharded(copy.deepcopy(NET), mesh), copy.deepcopy(NET)
            self.set_hooks(net, lambda local, mesh: ((local.to(torch.bfloat16),), None))
            for p in one.parameters():
                p.data = p.data.bfloat16().float()
            y, expected = net(rows(0)), one(rows(0))
            y.sum().backward(), expected.sum().backward()
            torch.testing.assert_close(y, expected)
            for p, q in zip(net.parameters(), one.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)
            bytes_of_layer = sum(p.numel() * 2 for p in one[0].parameters())
            self.assertEqual(net.fsdp_stats()["peak_gathered_bytes"], bytes_of_layer)

        for ranks in (1, 2, 4):
            dtensor.run(ranks, on_rank, ranks)

    def test_get_the_shard_mesh_of_replicas(self):
        def on_rank():
            for names in (("replicate", "shard"), None):
                mesh, seen = dtensor.init_device_mesh("cpu", (3, 2), mesh_dim_names=names), []

                def pre(local, mesh, outer_size, outer_stride, module, mp_policy):
                    seen.append((mesh.ndim, mesh.size()))
                    return (local,), None

                net = sharded(wrapped(NET, pair_of(Pair)), mesh)
                self.set_hooks(net, pre)
                net(rows(dtensor.rank())).sum().backward()
                self.assertEqual(set(seen), {(1, 2)})

        dtensor.run(6, on_rank)

    def test_refused(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (4,))
            net = sharded(wrapped(NET, pair_of(Pair)), mesh)
            with self.assertRaisesRegex(TypeError, "parameter 'inner.weight' is a wrapper of other tensors; expected fsdp_pre_all_gather"):
                net(rows(0))
            net[0].inner.weight._local_tensor.fsdp_pre_all_gather = None
            with self.assertRaisesRegex(TypeError, "on parameter 'inner.weight', got only fsdp_pre_all_gather"):
                net(rows(0))
            weight = net[1].inner.weight
            readers = (weight.norm, weight.full_tensor, lambda: weight.redistribute(mesh, [Replicate()]), lambda: weight.softmax(0))
            for reads in (*readers, lambda: dtensor.save({"w": weight}, tempfile.gettempdir() + "/refused")):
                with self.assertRaisesRegex(RuntimeError, "expected a local tensor with memory, got a wrapper subclass"):
                    reads()
            with self.assertRaisesRegex(NotImplementedError, "expected a parameter with memory, got the wrapper subclass"):
                dtensor.optim.AdamW(net.parameters(), lr=0.1).step()
            self.assertIn("Pair(", repr(weight))
            for options in ({"reshard_after_forward": 2}, {"shard_placement_fn": lambda p: Shard(1)}):
                with self.assertRaisesRegex(NotImplementedError, "expected no CPU offloading|along dimension 0"):
                    fully_shard(wrapped(NET, pair_of(OneArgument))[0], mesh=mesh, **options)(rows(0))
            rounds = [0, 1]
            changes = wrapped(NET, pair_of(OneArgument))[0]
            fully_shard(changes, mesh=mesh)
            changes.inner.weight._local_tensor.fsdp_pre_all_gather = lambda mesh: ((torch.ones(rounds.pop() + 1),), None)
            changes.inner.weight._local_tensor.fsdp_post_all_gather = lambda gathered, metadata, dtype, out=None: (torch.ones(12, 8), ())
            changes(rows(0)), changes.reshard()
            with self.assertRaisesRegex(RuntimeError, "to contribute tensors of the sizes and dtypes of its first gather"):
                changes(rows(0))

        dtensor.run(4, on_rank)


if __name__ == "__main__":
    unittest.main()
