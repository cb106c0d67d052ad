"""context_parallel: attention of regular tensors covers the full sequence."""

import copy
import inspect
import os
import random
import unittest

import torch
import torch.distributed.tensor.experimental as theirs
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported_by_name
from torch.utils.checkpoint import checkpoint

import dtensor
from dtensor.experimental import context_parallel, context_parallel_unshard

torch.manual_seed(0)
Q, K, V = (torch.randn(2, heads, 11, 4, dtype=torch.float64) for heads in (4, 2, 2))


class ContextParallel(unittest.TestCase):
    def everywhere(self, check):
        for ranks in (1, 2, 3):
            dtensor.run(ranks, lambda: check(dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))))

    def test_attention_of_the_full_sequence(self):
        def check(mesh):
            for causal in (True, False):
                full = [t.clone().requires_grad_() for t in (Q, K, V)]
                expected = functional.scaled_dot_product_attention(*full, is_causal=causal, enable_gqa=True)
                expected.square().sum().backward()
                buffers = [t.clone() for t in (Q, K, V)]
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
                    own = [t.clone().requires_grad_() for t in buffers]
                    y = functional.scaled_dot_product_attention(*own, is_causal=causal, enable_gqa=True)
                    y.square().sum().backward()
                    found = context_parallel_unshard(mesh, [y, *(t.grad for t in own)], [2, 2, 2, -2])
                for a, b in zip(found, [expected.detach(), *(t.grad for t in full)]):
                    torch.testing.assert_close(a, b)
                for buffer, before in zip(buffers, (Q, K, V)):
                    torch.testing.assert_close(buffer, before, rtol=0, atol=0)

        self.everywhere(check)

    def test_buffers_are_restored_except_no_restore_buffers(self):
        def check(mesh):
            ids, labels = torch.arange(22).reshape(2, 11), torch.arange(11)
            with context_parallel(mesh, buffers=[ids, labels], buffer_seq_dims=[1, 0], no_restore_buffers={labels}):
                self.assertEqual(ids.shape[1], labels.shape[0])
                torch.testing.assert_close(ids[0], labels)
                full = context_parallel_unshard(mesh, [ids, labels], [1, 0])
            torch.testing.assert_close(full[0], torch.arange(22).reshape(2, 11))
            torch.testing.assert_close(full[1], torch.arange(11))
            torch.testing.assert_close(ids, full[0])
            self.assertEqual(labels.shape[0] == 11, mesh.size() == 1)

        self.everywhere(check)

    def test_no_effect_outside_the_scope(self):
        def check(mesh):
            with context_parallel(mesh, buffers=[torch.ones(4)], buffer_seq_dims=[0]):
                pass
            expected = functional.scaled_dot_product_attention(Q, Q, Q)
            self.assertEqual(expected.shape, Q.shape)
            with self.assertRaisesRegex(ValueError, "same number of elements"):
                context_parallel(mesh, buffers=[Q], buffer_seq_dims=[]).__enter__()
            with self.assertRaisesRegex(ValueError, "must be a subset"):
                context_parallel(mesh, buffers=[Q], buffer_seq_dims=[2], no_restore_buffers={K}).__enter__()

        self.everywhere(check)
        self.assertEqual(list(inspect.signature(theirs.context_parallel).parameters), list(inspect.signature(context_parallel).parameters))

    def test_buffers_have_memory_of_their_own(self):
        def check(mesh):
            batch = torch.arange(24).reshape(2, 12)
            ids, labels, positions = batch[:, :-1], batch[:, 1:], torch.arange(11).expand(2, 11)
            before = [t.clone() for t in (batch, ids, labels, positions)]
            with context_parallel(mesh, buffers=[ids, labels, positions], buffer_seq_dims=[1, 1, 1]):
                torch.testing.assert_close(labels, ids + 1)
                torch.testing.assert_close(positions, ids % 12)
                torch.testing.assert_close(batch, before[0])
                ids.zero_()
            for found, expected in zip((batch, ids, labels, positions), before):
                torch.testing.assert_close(found, expected)
            self.assertEqual((ids.stride(), ids.data_ptr()), ((12, 1), batch.data_ptr()))
            for wrong in ([batch, batch], [nn.Parameter(Q)]):
                with self.assertRaisesRegex(ValueError, "expected"):
                    context_parallel(mesh, buffers=wrong, buffer_seq_dims=[1] * len(wrong)).__enter__()

        self.everywhere(check)


class Operators(unittest.TestCase):
    """Whatever calls attention, it covers the full sequence, or raises."""

    def check(self, call, x, dim):
        expected = call(x)

        def on_rank():
            mesh, own = dtensor.init_device_mesh("cpu", (2,)), x.clone()
            with context_parallel(mesh, buffers=[own], buffer_seq_dims=[dim]):
                found = context_parallel_unshard(mesh, [call(own)], [dim])[0]
            torch.testing.assert_close(found, expected.detach())

        dtensor.run(2, on_rank)

    def test_every_name_of_the_operator(self):
        ops = torch.ops.aten
        calls = [
            functional.scaled_dot_product_attention, imported_by_name, torch._C._nn.scaled_dot_product_attention,
            ops.scaled_dot_product_attention, ops.scaled_dot_product_attention.default,
        ]  # fmt: skip
        for call in calls:
            self.check(lambda x: call(x, x, x, is_causal=True), Q, -2)
        self.check(lambda x: imported_by_name(x, x, x), Q[0], 1)
        self.check(lambda x: imported_by_name(x[:, :, None], x[:, :, None], x[:, :, None])[:, :, 0], Q, 2)

    def test_modules(self):
        attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
        stack = nn.TransformerEncoder(layer, 2)
        x = torch.randn(2, 11, 8, dtype=torch.float64)
        for train in (True, False):
            for grad in (True, False):
                with torch.set_grad_enabled(grad):
                    self.check(lambda x: copy.deepcopy(attention).train(train)(x, x, x, need_weights=False)[0], x, 1)
                    self.check(lambda x: copy.deepcopy(layer).train(train)(x), x, 1)
                    self.check(lambda x: copy.deepcopy(stack).train(train)(x), x, 1)
        with self.assertRaisesRegex(ValueError, "expected need_weights=False of multi-head attention, got True"):
            self.check(lambda x: attention(x, x, x)[0] if x.shape[1] < 11 else x, x, 1)

    def test_other_operators_raise(self):
        w, b = torch.ones(24, 8, dtype=torch.float64), torch.ones(24, dtype=torch.float64)
        tokens = lambda x: x[0].transpose(0, 1).flatten(1)[None]  # noqa: E731
        calls = {
            "_scaled_dot_product_flash_attention_for_cpu": lambda op, x: op(x, x, x),
            "_scaled_dot_product_attention_math": lambda op, x: op(x, x, x),
            "_native_multi_head_attention": lambda op, x: op(*[tokens(x)] * 3, 8, 2, w, b, w[:8], b[:8]),
        }
        for name, call in calls.items():
            with self.assertRaisesRegex(RuntimeError, f"context_parallel: aten::{name} would attend to this rank's shard"):
                self.check(lambda x: call(getattr(torch.ops.aten, name), x) if x.shape[2] < 11 else x, Q[:, :2], 2)

    def test_no_attention_operator_is_forgotten(self):
        dtensor.run(2, lambda: self.enter(dtensor.init_device_mesh("cpu", (2,))))
        names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::") and "backward" not in n]
        found = [n for n in names if any(word in n for word in ("attention", "multi_head", "transformer_encoder"))]
        self.assertGreater(len(found), 15)
        for name in found:
            self.assertTrue(torch._C._dispatch_has_kernel_for_dispatch_key(name, "TESTING_ONLY_GenericWrapper"), name)

    def enter(self, mesh):
        with context_parallel(mesh, buffers=[torch.ones(4)], buffer_seq_dims=[0]):
            pass


class Recomputation(unittest.TestCase):
    def test_sees_the_scope_of_its_forward_pass(self):
        w, x = torch.randn(8, 24, dtype=torch.float64), torch.randn(1, 11, 8, dtype=torch.float64)

        def net(x, w):
            q, k, v = (x @ w).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

        full = w.clone().requires_grad_()
        net(x, full).square().sum().backward()

        def on_rank():
            mesh, results = dtensor.init_device_mesh("cpu", (2,)), []
            for reentrant in (True, False):
                for inside in (True, False):
                    own, weight = x.clone(), w.clone().requires_grad_()
                    with context_parallel(mesh, buffers=[own], buffer_seq_dims=[1]):
                        loss = checkpoint(net, own.clone(), weight, use_reentrant=reentrant).square().sum()
                        if inside:
                            loss.backward()
                    if not inside:
                        loss.backward()
                    results.append(weight.grad)
            return results

        for a, b in zip(*dtensor.run(2, on_rank)):
            torch.testing.assert_close(a + b, full.grad)

    def test_every_scope_is_restored(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            for reentrant in (True, False):
                seen, x = [], torch.ones(2, requires_grad=True)

                def made(x):
                    with dtensor.MeshScope(mesh):
                        inner = isinstance(torch.ones(2), dtensor.DTensor)
                    seen.append((isinstance(torch.ones(2), dtensor.DTensor), inner))
                    return x.sin()

                with dtensor.MeshScope(mesh):
                    y = checkpoint(made, x, use_reentrant=reentrant)
                y.sum().backward()
                z = checkpoint(made, x, use_reentrant=reentrant)
                with dtensor.MeshScope(mesh):
                    z.sum().backward()
                self.assertEqual(seen, [(True, True)] * 2 + [(False, True)] * 2)
                self.assertFalse(isinstance(torch.ones(2), dtensor.DTensor))

        dtensor.run(2, on_rank)


def random_call(seed):
    """Queries, keys, values and a mask on one device, and which of them are sharded along which dimension."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kind, length, other = draw.choice(["self", "self", "text", "buffer"]), draw.randint(1, 24), draw.randint(1, 24)
    keys = length if kind == "self" else other
    sizes = {"q": (2, 2, length, 4), "k": (2, 2, keys, 4), "v": (2, 2, keys, 4), "table": (length + other,)}
    dims = {"q": 2, "table": 0} if kind == "text" else {"q": 2, "k": 2, "v": 2, "table": 0}
    masked, rows = draw.random() < 0.6, draw.choice([1, length])
    if masked:
        sizes["mask"] = (2, 1, rows, keys)
        split = draw.choice([None] + [2] * (rows > 1) + [3] * (rows == 1 and kind != "text"))
        dims.update({} if split is None else {"mask": split})
    tensors = {name: torch.randn(*size, generator=generator, dtype=torch.float64) for name, size in sizes.items()}
    if masked and draw.random() < 0.5:
        tensors["mask"] = tensors["mask"] < 0.8
    order = draw.sample(sorted(dims), len(dims))  # any buffer may be the first
    return tensors, {name: dims[name] for name in order}, kind != "text" and not masked and draw.random() < 0.5


class Layouts(unittest.TestCase):
    """Lengths of queries and keys are those of each call, not of a buffer."""

    def one(self, ranks, seed):
        tensors, dims, causal = random_call(seed)

        def attend(t):
            leaves = [t[name].clone().requires_grad_() for name in "qkv"]
            y = functional.scaled_dot_product_attention(*leaves, attn_mask=t.get("mask"), is_causal=causal)
            y.square().sum().backward()
            return [y.detach(), *(t.grad for t in leaves)]

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (ranks,))
            own = {name: t.clone() for name, t in tensors.items()}
            with context_parallel(mesh, buffers=[own[n] for n in dims], buffer_seq_dims=list(dims.values())):
                found = attend(own)
                sharded = 4 if "k" in dims else 2
                return context_parallel_unshard(mesh, found[:sharded], [2] * sharded), found[sharded:]

        results = dtensor.run(ranks, on_rank)
        found = [*results[0][0], *(sum(shares) for shares in zip(*(r[1] for r in results)))]
        for a, b in zip(found, attend(tensors), strict=True):
            torch.testing.assert_close(a, b, msg=lambda text: f"{ranks} ranks, seed {seed}: {text}")

    def test_random_calls_equal_one_device(self):
        for seed in range(int(os.environ.get("DRAWS", "60"))):
            self.one(2 + seed % 3, seed)

    def refused(self, text, call, length=8):
        def on_rank():
            mesh, q = dtensor.init_device_mesh("cpu", (2,)), torch.randn(1, 2, length, 4)
            with context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
                call(q)

        with self.assertRaisesRegex(RuntimeError, text):
            dtensor.run(2, on_rank)

    def test_unclear_calls_are_refused(self):
        attend, prefix = functional.scaled_dot_product_attention, torch.randn(1, 2, 2, 4)

        def with_prefix(q):
            keys = torch.cat([prefix, q], 2)
            attend(q, keys, keys)

        same = "expected keys of .* or the same keys on every rank; got 6 tokens on this rank, whose values differ"
        self.refused(same, with_prefix)
        some = lambda q: q[:, :, : 1 + 2 * dtensor.rank()]  # noqa: E731
        self.refused("expected queries that are the zigzag shards of one sequence, got", lambda q: attend(some(q), q, q), 7)
        self.refused("expected a mask of 8", lambda q: attend(q, q, q, attn_mask=torch.ones(4, 4, dtype=torch.bool)))
        self.refused("expected a mask of 8", lambda q: attend(q, q, q, attn_mask=torch.ones(3, 8, dtype=torch.bool)))


if __name__ == "__main__":
    unittest.main()
