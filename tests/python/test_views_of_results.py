"""reshape, view and flatten of results of operators, of parameters of fully_shard and of redistributed slices: values and
gradients equal one device on every layout."""

import itertools
import random
import unittest
import warnings

import torch
from torch import nn

import dtensor
import views_of_results
from dtensor import DTensor, Replicate, Shard, distribute_tensor
from dtensor.fsdp import fully_shard
from layouts import SHAPES, any_placements, mesh_of, ranks_of, trials


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


class ViewsOfResults(unittest.TestCase):
    def test_results_of_a_sample_of_operators(self):
        warnings.simplefilter("ignore")
        try:
            ops = views_of_results.draws()
        except ImportError as error:  # torch's own tests need additional packages
            self.skipTest(str(error))
        drawn = random.Random(0).sample(ops, min(trials(30), len(ops)))
        drawn += [op for op in ops if op.name in ("select_scatter", "split_with_sizes", "nn.functional.scaled_dot_product_attention")]
        for op, shape in itertools.product(drawn, ((2,), (2, 2))):
            for verdict, text in views_of_results.check(op, shape, 3, 1):
                self.assertEqual(verdict, "equal", f"{op.name} {op.variant_test_name} on {shape}: {text}")

    def test_attention_of_slices_of_one_projection(self):
        def run(x, heads, of_keys):
            x.requires_grad_()
            parts = x.split([heads * 4, of_keys * 4, of_keys * 4], -1)
            q, k, v = (t.view(*x.shape[:2], -1, 4).transpose(1, 2) for t in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != of_keys)
            y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1).square().sum().backward()
            return x.grad

        def on_rank(ranks, strategy, x, heads, of_keys):
            mesh = dtensor.init_device_mesh("cpu", (ranks,))
            with dtensor.attention_strategy(strategy):
                for dim in range(3):
                    found = run(distribute_tensor(x.clone(), mesh, [Shard(dim)]), heads, of_keys)
                    torch.testing.assert_close(found.full_tensor(), run(x.clone(), heads, of_keys), msg=f"{dim} {x.shape}")

        for ranks, strategy in itertools.product((2, 3), ("auto", "ring", "gather", "ulysses")):
            for batch, length, heads, of_keys in ((1, 4, 2, 2), (2, 5, 2, 1), (3, 1, 6, 3)):
                x = torch.randn(batch, length, (heads + 2 * of_keys) * 4, generator=torch.Generator().manual_seed(0)).double()
                dtensor.run(ranks, on_rank, ranks, strategy, x, heads, of_keys)

    def test_parameters_with_uneven_rows(self):
        layers = {shape: nn.Linear(*shape, bias=False) for shape in ((12, 5), (3, 7), (4, 1))}
        views = [
            lambda w: w.view(-1), lambda w: w.flatten(), lambda w: w[1:].reshape(-1), lambda w: w.reshape(1, -1),
            lambda w: w.reshape(w.shape[1], w.shape[0]), lambda w: w.t().reshape(-1), lambda w: w[:, ::2].flatten(),
        ]  # fmt: skip

        def on_rank(ranks):
            mesh = dtensor.init_device_mesh("cpu", (ranks,))
            for (columns, rows), layer in layers.items():
                module = nn.Linear(columns, rows, bias=False)
                module.load_state_dict(layer.state_dict())
                weight = fully_shard(module, mesh=mesh).weight
                for i, view in enumerate(views):
                    torch.testing.assert_close(view(weight.detach()).full_tensor(), view(layer.weight.detach()), msg=f"{i} {rows}")
                flat = nn.utils.parameters_to_vector([weight])
                (found,) = torch.autograd.grad((flat * flat).sum(), weight)
                torch.testing.assert_close(found.full_tensor(), 2 * layer.weight.detach())

        for ranks in (1, 2, 3, 4):
            dtensor.run(ranks, on_rank, ranks)

    def test_redistributed_slices(self):
        def on_rank(shape, seed):
            draw, mesh = random.Random(seed), mesh_of(shape)
            sizes = [draw.randint(1, 5) for _ in range(3)]
            x = torch.randn(*sizes[:2], 3 * sizes[2], generator=torch.Generator().manual_seed(seed)).double()
            order = draw.sample(range(3), 3)

            def run(x, move):
                part = move(x[..., sizes[2] : 2 * sizes[2]].permute(order))
                turned = part.permute([order.index(d) for d in range(3)])
                return [turned.reshape(sizes[0] * sizes[1], -1), turned.flatten(), part.flatten(1)]

            placed = distribute_tensor(x, mesh, any_placements(draw, x.shape, mesh)).requires_grad_()
            x.requires_grad_()
            to = any_placements(draw, [sizes[d] for d in order], mesh)
            found = run(placed, lambda t: t.redistribute(placements=to))
            for a, b in zip(found, run(x, lambda t: t)):
                torch.testing.assert_close(a.full_tensor(), b, msg=f"{seed} {sizes} {order} {to}")
            loss = sum((t * t).sum() for t in found)
            torch.testing.assert_close(torch.autograd.grad(loss, placed)[0].full_tensor(), gradient(run(x, lambda t: t), x))

        def gradient(results, x):
            return torch.autograd.grad(sum((t * t).sum() for t in results), x)[0]

        for seed in range(trials(40)):
            shape = SHAPES[seed % len(SHAPES)]
            dtensor.run(ranks_of(shape), on_rank, shape, seed)


if __name__ == "__main__":
    unittest.main()
