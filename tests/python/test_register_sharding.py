"""register_sharding: sharding rules written in Python."""

import unittest

import torch

import dtensor
from dtensor import Partial, Replicate, Shard
from dtensor.experimental import register_sharding

LIBRARY = torch.library.Library("names_test", "DEF")
LIBRARY.define("scaled_rows(Tensor x, Tensor? scale, int dim, float factor=1.0) -> (Tensor, Tensor)")
LIBRARY.define("product(Tensor a, Tensor b) -> Tensor")
LIBRARY.define("multiples(Tensor x, int n) -> Tensor[]")
LIBRARY.define("joined(Tensor[] parts) -> Tensor")
LIBRARY.define("energy(Tensor x, float[] c, Tensor w) -> Tensor")
LIBRARY.define("mixed(int[]? before, Tensor?[] parts, float[] c, Tensor x, Tensor? last, int[2] after) -> Tensor")


def scaled_rows(x, scale, dim, factor=1.0):
    y = x * factor if scale is None else x * scale * factor
    return y - y.sum(dim, keepdim=True), y.sum(dim)


def mixed(before, parts, c, x, last, after):
    given = [t for t in [*parts, last] if t is not None]
    return x * (1 + sum(c)) + sum(given, torch.zeros_like(x)) * (len(before or ()) + after[1])


for name, fn in {
    "multiples": lambda x, n: [x * (k + 1) for k in range(n)], "scaled_rows": scaled_rows, "product": lambda a, b: a @ b, "joined": lambda parts: sum(parts), "mixed": mixed,
    "energy": lambda x, c, w: sum(c) * x.square().sum() + len(c) * w.square().sum(),
}.items():  # fmt: skip
    LIBRARY.impl(name, fn, "CPU")
    LIBRARY.impl(name, fn, "Meta")


@register_sharding(torch.ops.names_test.scaled_rows.default)
def _(x, scale, dim, factor=1.0):
    entries = [([Replicate(), Replicate()], [Replicate(), None if scale is None else Replicate(), None, None])]
    for d in range(x.ndim):
        if d != dim % x.ndim:
            rest = d - (d > dim % x.ndim)
            entries.append(([Shard(d), Shard(rest)], [Shard(d), None if scale is None else Shard(d), None, None]))
    return entries


@register_sharding(torch.ops.names_test.multiples.default)
def _(x, n):
    return [([Shard(0)] * n, [Shard(0), None])]


@register_sharding([torch.ops.names_test.product.default])
def _(a, b):
    return [
        ([Shard(0)], [Shard(0), Replicate()]), ([Shard(1)], [Replicate(), Shard(1)]), ([Partial()], [Shard(1), Shard(0)]),
        ([Partial()], [Partial(), Replicate()]), ([Partial()], [Replicate(), Partial()]),
    ]  # fmt: skip


@register_sharding(torch.ops.names_test.energy.default)
def _(x, c, w):
    return [([Partial()], [Shard(0), None, Shard(0)])]


@register_sharding(torch.ops.names_test.mixed.default)
def _(before, parts, c, x, last, after):
    def entry(placement):
        of = lambda t: None if t is None else placement  # noqa: E731
        return [placement], [None, *map(of, parts), None, placement, of(last), None]

    return [entry(Shard(0)), entry(Shard(1))]


@register_sharding(torch.ops.names_test.joined.default)
def _(parts):
    assert isinstance(parts, list)
    return [([Shard(0)], [Shard(0)] * len(parts)), ([Partial()], [Partial()] * len(parts))]


ops = torch.ops.names_test
X, W = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4), torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)


class Registered(unittest.TestCase):
    def check(self, call, tensors, expected_placements):
        """Checks results for all placements of the operands; registered placements need no communication."""
        expected = call(*tensors)
        every = [[Replicate()], [Shard(0)], [Shard(1)], [Partial()]]

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            for first in every:
                for second in every if len(tensors) > 1 else [None]:
                    given = [dtensor.distribute_tensor(t, mesh, p) for t, p in zip(tensors, (first, second))]
                    with dtensor.CommDebugMode() as comm:
                        found = call(*given)
                    for a, b in zip(*[[r] if isinstance(r, torch.Tensor) else r for r in (found, expected)]):
                        torch.testing.assert_close(a.full_tensor(), b)
                    free = expected_placements.get(tuple(p[0] for p in (first, second) if p))
                    if free is not None:
                        self.assertEqual(comm.get_total_counts(), 0)
                        self.assertEqual([a.placements[0] for a in ([found] if isinstance(found, torch.Tensor) else found)], free)

        dtensor.run(2, on_rank)

    def test_results_arguments_and_defaults(self):
        self.check(lambda x: ops.scaled_rows(x, None, 1), [X], {(Shard(0),): [Shard(0), Shard(0)]})
        self.check(lambda x: ops.scaled_rows(x, None, 0, 2.0), [X], {(Shard(1),): [Shard(1), Shard(0)]})
        self.check(lambda x, s: ops.scaled_rows(x, s, -1, 3.0), [X, X.cos()], {(Shard(0), Shard(0)): [Shard(0), Shard(0)]})

    def test_partial_sums(self):
        self.check(ops.product, [X, W], {
            (Shard(0), Replicate()): [Shard(0)], (Replicate(), Shard(1)): [Shard(1)], (Shard(1), Shard(0)): [Partial()],
            (Partial(), Replicate()): [Partial()],
        })  # fmt: skip

    def test_lists(self):
        self.check(lambda a, b: ops.joined([a, b]), [X, X.sin()], {
            (Shard(0), Shard(0)): [Shard(0)], (Partial(), Partial()): [Partial()],
        })  # fmt: skip

        self.check(lambda a: ops.joined([a]), [X], {(Shard(0),): [Shard(0)], (Partial(),): [Partial()]})

    def test_a_list_of_results_has_any_length(self):
        for n in (0, 1, 3):
            self.check(lambda x: ops.multiples(x, n), [X], {(Shard(0),): [Shard(0)] * n})

    def test_a_list_of_numbers_is_one_argument_of_any_length(self):
        for c in ([], [2.0], [2.0, 3.0], [1.0, 2.0, 3.0]):
            self.check(lambda x, w: ops.energy(x, c, w), [X, X.cos()], {(Shard(0), Shard(0)): [Partial()]})

    def test_lists_of_all_kinds_and_lengths(self):
        for before in (None, [1, 2, 3]):
            for c in ([], [2.0, 3.0]):
                for parts in (lambda y: [], lambda y: [None], lambda y: [y], lambda y: [y, None, y]):
                    for with_last in (True, False):
                        call = lambda x, y: ops.mixed(before, parts(y), c, x, y if with_last else None, [3, 4])  # noqa: E731
                        self.check(call, [X, X.sin()], {(Shard(0), Shard(0)): [Shard(0)], (Shard(1), Shard(1)): [Shard(1)]})

    def test_the_example_of_pytorchs_documentation(self):
        @register_sharding(torch.ops.aten._softmax.default)
        def custom_softmax_sharding(x, dim, half_to_float):
            softmax_dim = dim if dim >= 0 else dim + x.ndim
            acceptable = [([Replicate()], [Replicate(), None, None])]
            for d in range(x.ndim):
                if d != softmax_dim:
                    acceptable.append(([Shard(d)], [Shard(d), None, None]))
            return acceptable

        self.check(lambda x: torch.softmax(x, -1), [X], {(Shard(0),): [Shard(0)], (Replicate(),): [Replicate()]})
        self.check(lambda x: torch.softmax(x, 0), [X], {(Shard(1),): [Shard(1)]})

    def test_unsupported_entries_are_refused(self):
        cases = {
            "twice": [([Shard(0)], [Shard(0), Replicate()]), ([Partial()], [Shard(0), Shard(0)])],
            "missing": [([Shard(5)], [Shard(0), Replicate()])],
            "unsplit": [([Replicate()], [Shard(0), Replicate()])],
            "unplaced": [([Shard(0)], [Shard(0), None])],
            "longer": [([Shard(0)], [Shard(0), Replicate(), None])],
            "shorter": [([Shard(0)], [Shard(0)])],
        }
        for name, entries in cases.items():
            LIBRARY.define(f"{name}(Tensor a, Tensor b) -> Tensor")
            for key in ("CPU", "Meta"):
                LIBRARY.impl(name, lambda a, b: a @ b, key)
            op = getattr(ops, name).default
            register_sharding(op)(lambda a, b, entries=entries: entries)

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,))
                with self.assertRaisesRegex(Exception, f"register_sharding\\(names_test::{name}"):
                    op(dtensor.distribute_tensor(X, mesh, [Shard(0)]), dtensor.distribute_tensor(W, mesh))

            dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
