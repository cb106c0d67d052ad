"""local_map as in torch.distributed.tensor.experimental: placements that are None, arguments that are not tensors."""

import unittest

import torch

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard, local_map

X = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)


class LocalMap(unittest.TestCase):
    def everywhere(self, check, shape=(2,)):
        ranks = torch.Size(shape).numel()
        dtensor.run(ranks, lambda: check(dtensor.init_device_mesh("cpu", shape, mesh_dim_names=tuple("ab"[: len(shape)]))))

    def test_inputs_with_in_placements_none(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)]).requires_grad_()
            w = torch.full((6,), 2.0, dtype=torch.float64)
            scaled = local_map(lambda w, factor, x, add=None: x * w * factor, [[Shard(0)]], [None, None, [Shard(0)]])
            y = scaled(w, 3, x)
            torch.testing.assert_close(y.full_tensor(), X * 6)
            y.sum().backward()
            torch.testing.assert_close(x.grad.full_tensor(), torch.full_like(X, 6))
            columns = x.detach().redistribute(placements=[Shard(1)])
            both = local_map(lambda a, b: (a.sum(1), b.sum(0)), ([Shard(0)], [Shard(0)]), (None, [Shard(1)]))
            for found, dim in zip(both(x.detach(), columns), (1, 0)):
                torch.testing.assert_close(found.full_tensor(), X.sum(dim))

        self.everywhere(check)

    def test_gradients_with_in_grad_placements_none(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)]).requires_grad_()
            w = dtensor.distribute_tensor(X, mesh, [Replicate()]).requires_grad_()
            product = local_map(
                lambda x, w: (x * w.chunk(2)[dtensor.rank()]).sum(), [[Partial()]], [[Shard(0)], [Replicate()]], [None, [Partial()]]
            )
            product(x, w).backward()
            torch.testing.assert_close(x.grad.full_tensor(), X)
            torch.testing.assert_close(w.grad.full_tensor(), X)

        self.everywhere(check)

    def test_outputs_with_out_placements_none(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)])
            for found in [
                local_map(lambda x: (x.shape[0], x + 1), (None, [Shard(0)]))(x),
                local_map(lambda x: [x.sum(), x + 1, "note"], (None, [Shard(0)], None))(x),
            ]:
                self.assertFalse(isinstance(found[0], DTensor))
                torch.testing.assert_close(found[1].full_tensor(), X + 1)
            self.assertEqual(local_map(lambda x: x.shape[0], [None])(x), 2)
            with self.assertRaisesRegex(RuntimeError, "returned 1 values, expected 2 as in out_placements"):
                local_map(lambda x: x, ([Shard(0)], [Shard(0)]))(x)
            with self.assertRaisesRegex(RuntimeError, "got 2 in_placements, expected one for each of the 1 inputs"):
                local_map(lambda x: x, ([Shard(0)],), ([Shard(0)], None))(x)

        self.everywhere(check)

    def test_one_output_on_a_mesh_of_two_dimensions(self):
        def check(mesh):
            placements = [Shard(0), Shard(1)]
            x = dtensor.distribute_tensor(X, mesh, placements)
            y = local_map(lambda x: x + 1, out_placements=placements)(x)
            self.assertEqual(y.placements, tuple(placements))
            torch.testing.assert_close(y.full_tensor(), X + 1)

        self.everywhere(check, (2, 2))

    def test_as_a_decorator_with_keyword_arguments(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)])

            @local_map(out_placements=[Shard(0)], in_placements=([Shard(0)],))
            def scaled(x, *, factor=1):
                return x * factor

            self.assertEqual(scaled.__name__, "scaled")
            torch.testing.assert_close(scaled(x, factor=3).full_tensor(), 3 * X)
            named = local_map(func=lambda x: x + 1, out_placements=[Shard(0)])
            torch.testing.assert_close(named(x).full_tensor(), X + 1)
            torch.testing.assert_close(named(X), X + 1)  # without DTensors only the function is called
            self.assertIs(local_map(lambda x: bool((x >= 0).all()))(x), True)  # a result that is not a tensor

        self.everywhere(check)

    def test_nested_arguments_and_results(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)])
            placements = ([Shard(0)], None, [Shard(0)])

            def swapped(pair, other):
                return {"b": pair[0], "note": other["note"], "x": other["x"] * 2}

            found = local_map(swapped, ([Shard(0)], None, [Shard(0)]), placements)((x, "n")[:1], {"note": "text", "x": x})
            self.assertEqual(found["note"], "text")
            torch.testing.assert_close(found["b"].full_tensor(), X)
            torch.testing.assert_close(found["x"].full_tensor(), 2 * X)

        self.everywhere(check)

    def test_redistribute_inputs(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)]).requires_grad_()
            total = {"out_placements": [Shard(1)], "in_placements": ([Shard(1)],)}
            with self.assertRaisesRegex(ValueError, "If redistribute_inputs is wanted, set redistribute_inputs=True"):
                local_map(lambda x: x.cumsum(0), **total)(x)
            found = local_map(lambda x: x.cumsum(0), **total, redistribute_inputs=True)(x)
            torch.testing.assert_close(found.full_tensor(), X.cumsum(0))
            found.sum().backward()
            torch.testing.assert_close(x.grad.full_tensor(), torch.arange(4.0, 0, -1).double()[:, None].expand(4, 6))
            last = local_map(lambda x: x.cumsum(-1), [Shard(-2)], ([Shard(-2)],))
            torch.testing.assert_close(last(x).full_tensor(), X.cumsum(-1))

        self.everywhere(check)

    def test_storage_shards_count_as_replicated(self):
        def check(mesh):
            weight = dtensor.fully_shard(torch.nn.Linear(4, 6).double(), mesh=mesh).weight
            gathered = local_map(lambda w: w * 2, [Replicate()], ([Replicate()],))(weight)
            torch.testing.assert_close(gathered.full_tensor(), 2 * weight.full_tensor())

        self.everywhere(check)

    def test_results_on_another_mesh(self):
        def check(mesh):
            x = dtensor.distribute_tensor(X, mesh["a"], [Shard(0)]).requires_grad_()
            y = local_map(lambda x: x * 2, [Shard(0), Replicate()], device_mesh=mesh)(x)
            self.assertEqual((y.device_mesh, y.placements), (mesh, (Shard(0), Replicate())))
            torch.testing.assert_close(y.full_tensor(), 2 * X)
            y.sum().backward()
            torch.testing.assert_close(x.grad.full_tensor(), torch.full_like(X, 2))

        self.everywhere(check, (2, 2))


if __name__ == "__main__":
    unittest.main()
