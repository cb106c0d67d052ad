"""Numbers and 0-dimensional regular tensors beside DTensors must be equal on all ranks: every operator that takes one."""

import unittest

import torch

import dtensor
from dtensor import Shard
from dtensor.debug import CommDebugMode
from layouts import mesh_of
from processes import run_processes

DIFFERS = "expected a number or 0-dimensional regular tensor beside DTensors to be equal on all ranks"
# Operators whose result does not depend on the value in these calls: they read sizes and types, or write the tensor, or
# compare it with 1. The result of matrix_exp_backward is a regular tensor.
UNREAD = {"_has_compatible_shallow_copy_type", "_has_same_storage_numel", "hinge_embedding_loss", "is_same_size", "matrix_exp_backward", "pad_sequence",
          "resize_as", "resize_as_", "result_type", "rrelu_with_noise", "rrelu_with_noise_", "to", "to_dense_backward", "to_mkldnn_backward",
          "type_as"}  # fmt: skip
NUMBER, NUMBERS = ("number", "Scalar", "float", "Optional[number]", "Optional[float]"), ("List[number]", "List[float]")


def overloads():
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::") and not name.endswith("out"):
            packet, _, overload = name[len("aten::") :].partition(".")
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def arguments(operator, number_of, tensor_of):
    """Numbers and tensors for the arguments of an operator, in order; None if it takes something else."""
    values = []
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if kind in NUMBER:
            values.append(number_of(argument))
        elif kind in NUMBERS:
            values.append([number_of(argument)] * 2)
        elif kind in ("Tensor", "List[Tensor]"):
            values.append(tensor_of(argument) if kind == "Tensor" else [tensor_of(argument)] * 2)
        elif not argument.has_default_value():
            return None
    return values


def call(operator, number, as_tensor):
    """Calls the operator with ``number`` in place of its numbers, or of its last tensor; then communicates."""
    matrix = dtensor.distribute_tensor(torch.linspace(0.1, 0.9, 16).reshape(4, 4), mesh_of((2,)), [Shard(0)])
    last = [a.name for a in operator._schema.arguments if str(a.type) == "Tensor"][-1:]
    tensor = lambda a: torch.tensor(number) if as_tensor and [a.name] == last and a.alias_info is None else matrix.clone()
    values = arguments(operator, lambda _: 0.5 if as_tensor else number, tensor)
    with torch.no_grad():
        operator(*values)
    matrix.full_tensor()


def cases():
    """(operator, whether a tensor takes the number)"""
    for operator in overloads():
        kinds = [str(argument.type) for argument in operator._schema.arguments]
        if kinds and kinds[0] in ("Tensor", "List[Tensor]") and arguments(operator, id, id) is not None:
            if any(kind in NUMBER + NUMBERS for kind in kinds):
                yield operator, False
            if kinds.count("Tensor") >= (2 if kinds[0] == "Tensor" else 1):
                yield operator, True


def works(case):
    try:
        call(case[0], 0.5, case[1])
        return True
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return False


class Numbers(unittest.TestCase):
    def test_every_operator_refuses_numbers_that_differ(self):
        candidates = list(cases())
        usable = dtensor.run(2, lambda: [works(case) for case in candidates])[0]
        tried = [case for case, good in zip(candidates, usable) if good and case[0].overloadpacket.__name__ not in UNREAD]
        silent = []
        for operator, as_tensor in tried:
            try:
                dtensor.run(2, lambda: call(operator, (0.5, 0.25)[dtensor.rank()], as_tensor))
                silent.append((str(operator), as_tensor))
            except RuntimeError as error:
                self.assertRegex(str(error), f"{DIFFERS}|values differ between ranks", operator)  # kron views it as a matrix
        self.assertEqual(silent, [])
        self.assertGreater(len(tried), 300)

    def test_the_message_names_operators_and_values(self):
        def on_rank():
            ones = dtensor.ones(4, device_mesh=mesh_of((2,)), placements=[Shard(0)])
            (ones * 3 + (1 + dtensor.rank())).full_tensor()

        with self.assertRaisesRegex(RuntimeError, r"in call \d+: rank 0 called aten::add.Tensor with 1; rank 1 called aten::add.Tensor with 2"):
            dtensor.run(2, on_rank)

    def test_a_difference_is_found_late_and_calls_of_one_rank_are_allowed(self):
        def on_rank(last):
            ones = dtensor.ones(4, device_mesh=mesh_of((2,)), placements=[Shard(0)])
            for step in range(300):
                if step % 7 == 3 and dtensor.rank() == 0:
                    ones * step  # for the log of one rank
                (ones * (last[dtensor.rank()] if step == 299 else step)).full_tensor()

        dtensor.run(2, on_rank, (1, 1))
        with self.assertRaisesRegex(RuntimeError, DIFFERS):
            dtensor.run(2, on_rank, (1, 2))

    def test_numbers_cost_no_collective(self):
        def on_rank():
            ones = dtensor.ones(4, device_mesh=mesh_of((2,)), placements=[Shard(0)])
            with CommDebugMode() as counts:
                ones * 2 + torch.tensor(3.0)
            return counts.get_total_counts()

        self.assertEqual(dtensor.run(2, on_rank), [0, 0])

    def test_each_mesh_dimension_compares(self):
        def on_rank(axis):
            mesh = mesh_of((2, 2))
            ones = dtensor.ones(4, 4, device_mesh=mesh, placements=[Shard(0), Shard(1)])
            (ones * (1 + mesh.get_coordinate()[axis])).sum().full_tensor()

        for axis in range(2):
            with self.assertRaisesRegex(RuntimeError, DIFFERS):
                dtensor.run(4, on_rank, axis)

    def test_processes_compare(self):
        with self.assertRaisesRegex(AssertionError, DIFFERS):
            run_processes(2, multiplied_by_rank)


def multiplied_by_rank():
    ones = dtensor.ones(4, device_mesh=mesh_of((2,)), placements=[Shard(0)])
    return (ones * (1.0 + dtensor.rank())).full_tensor().tolist()


if __name__ == "__main__":
    unittest.main()
