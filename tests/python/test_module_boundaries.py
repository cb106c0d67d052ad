"""Regular inputs of modules under fully_shard: which dimensions are rows, recursive calls, calls that raise."""

import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor.fsdp import MixedPrecisionPolicy, fully_shard

torch.manual_seed(0)
ROWS = torch.randn(7, 4).double()


def unit(module, **options):
    return fully_shard(copy.deepcopy(module), mesh=dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), **options)


class Bias(nn.Module):
    """Takes rows, and tables that are the same on every rank."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4).double()

    def forward(self, x, table, **more):
        return self.layer(x) + table.sum() + sum(t.sum() for t in more.values())


class Twice(nn.Module):
    """A module that calls itself, and handles an error of the inner call."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.fails = layer, False

    def forward(self, x, depth=2):
        if depth == 0:
            if self.fails:
                raise ValueError("at the bottom")
            return x
        y = torch.tanh(self.layer(x))
        try:
            return self(y, depth - 1)
        except ValueError:
            return self.layer(y)


class Rows(unittest.TestCase):
    def test_a_table_with_as_many_rows_as_one_rank(self):
        """4 and 3 rows: a table has as many rows as the batch of one rank."""
        reference, tables = Bias(), {"table": torch.randn(4, 2).double(), "further": torch.randn(3, 2).double()}

        def on_rank():
            own = ROWS.split([4, 3])[dtensor.rank()]
            module = unit(reference)
            torch.testing.assert_close(module(own, **tables), reference(own, **tables))

        dtensor.run(2, on_rank, timeout=20)


class Outputs(unittest.TestCase):
    """Outputs need not have rows as their first dimension."""

    def check(self, reference, count):
        rows = torch.randn(count, 3, 4).double()
        results = [reference(part) for part in rows.chunk(2)]
        sum(y.square().mean() / 2 for result in results for y in result).backward()

        def on_rank():
            module = unit(reference)
            found = module(rows.chunk(2)[dtensor.rank()])
            for y, expected in zip(found, results[dtensor.rank()]):
                torch.testing.assert_close(y, expected)
            sum(y.square().mean() for y in found).backward()
            for p, q in zip(module.parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

        dtensor.run(2, on_rank)

    def test_rows_in_another_dimension(self):
        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4).double()

            def forward(self, x):
                y = self.layer(x)
                return y.transpose(0, 1), y[:, 0].t(), y.sum(-1).t(), y

        for count in (4, 7):  # an even and an uneven split over the ranks
            self.check(Turned(), count)
            self.check(nn.GRU(4, 5, 2, batch_first=True).double(), count)

    def test_several_entries_for_each_row(self):
        """Tokens of an uneven split of rows; two views of all rows, one batch after the other."""

        class Entries(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4).double()

            def forward(self, x):
                y = self.layer(x)
                return y.flatten(0, 1), torch.stack([y, 2 * y]).flatten(0, 1)

        for count in (4, 3, 7):
            self.check(Entries(), count)


class Calls(unittest.TestCase):
    def test_recursive_calls_return_regular_tensors(self):
        reference = Twice(nn.Linear(4, 4).double())

        def on_rank(fails):
            module = unit(reference)
            module.fails = fails
            for own in (ROWS[:3], ROWS[3:6]):
                y = module(own)
                self.assertFalse(isinstance(y, dtensor.DTensor))
                torch.testing.assert_close(y, reference(own))

        for fails in (False, True):
            reference.fails = fails
            dtensor.run(2, on_rank, fails)

    def test_calls_that_raise_restore_their_casts_only(self):
        """A hook raises before an inner call has cast its parameters, inside a call that has."""
        reference = Twice(nn.Linear(4, 4))

        def refuse(module, args):
            if len(args) > 1 and args[1] == 0:
                raise ValueError("no further")

        def on_rank():
            seen, twin = [], copy.deepcopy(reference)
            twin.layer.register_forward_hook(lambda m, args, y: seen.append(m.weight.dtype))
            twin.register_forward_pre_hook(refuse)
            module = unit(twin, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
            for _ in range(2):
                self.assertEqual(module(ROWS[:2].float(), 1).dtype, torch.bfloat16)
                self.assertEqual(module.layer.weight.dtype, torch.float32)
            with self.assertRaisesRegex(ValueError, "no further"):
                module(ROWS[:2].float(), 0)
            self.assertEqual(module(ROWS[:2].float(), 1).dtype, torch.bfloat16)
            return [str(dtype) for dtype in seen]

        self.assertEqual(dtensor.run(2, on_rank), [["torch.bfloat16"] * 6] * 2)


if __name__ == "__main__":
    unittest.main()
