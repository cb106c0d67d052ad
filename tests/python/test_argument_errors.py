"""Wrong arguments of bound functions: one line that names the argument, what is expected and what was given."""

import types
import unittest

import torch

import dtensor
from dtensor import _C, Shard


def bound_functions():
    for name, value in vars(_C).items():
        if isinstance(value, types.BuiltinFunctionType):
            yield name, value
        if isinstance(value, type) and value.__module__ == "dtensor._C":
            yield name, value
            for member, function in vars(value).items():
                function = getattr(function, "__func__", function)
                if callable(function) and "(" in (getattr(function, "__doc__", None) or "") and not member.startswith("__"):
                    yield f"{name}.{member}", function


class ArgumentErrors(unittest.TestCase):
    def test_name_the_argument(self):
        mesh = dtensor.init_device_mesh("cpu", (1,))
        world = dtensor.world()
        cases = [
            (lambda: dtensor.init_device_mesh("cpu", 2), "init_device_mesh(): argument 'mesh_shape' (position 2): expected Sequence[int], got 2 (int)"),
            (lambda: dtensor.init_device_mesh(3, (1,)), "init_device_mesh(): argument 'device_type' (position 1): expected str, got 3 (int)"),
            (lambda: dtensor.init_device_mesh("cpu", (1,), names=("a",)), "init_device_mesh(): expected arguments device_type, mesh_shape, mesh_dim_names, world, comm, got 'names'"),
            (lambda: dtensor.init_device_mesh("cpu"), "init_device_mesh(): missing argument 'mesh_shape' (position 2), expected Sequence[int]"),
            (lambda: Shard("a"), "shard(): argument 'dim' (position 1): expected int, got 'a' (str)"),
            (lambda: mesh.size(0, 3), "size(): expected at most 1 positional argument(s), got 2"),
            (lambda: dtensor.set_timeout("x"), "set_timeout(): argument 'seconds' (position 1): expected float, got 'x' (str)"),
            (lambda: dtensor.run("2", print), "run(): argument 'ranks' (position 1): expected int, got '2' (str)"),
            (lambda: world.all_reduce(3), "all_reduce(): argument 'tensor' (position 1): expected Tensor, got 3 (int)"),
            (lambda: world.all_reduce(torch.ones(1), op=7), "all_reduce(): argument 'op' (position 2): expected str, got 7 (int)"),
            (lambda: dtensor.HardwareModel.read(3), "read(): argument 'path' (position 1): expected str, got 3 (int)"),
        ]  # fmt: skip
        for call, expected in cases:
            with self.assertRaises(TypeError) as error:
                call()
            self.assertEqual(str(error.exception), expected)

    def test_no_function_prints_signatures_of_the_bindings(self):
        seen = 0
        for name, function in bound_functions():
            for arguments in ([object()] * 30, []):
                try:
                    function(*arguments)
                except Exception as error:  # a call without arguments may be right, or refused for another reason
                    text = str(error)
                    seen += isinstance(error, TypeError) and f"{name.split('.')[-1]}(): " in text
                    for unwanted in ("incompatible", "Invoked with", "Supports", "dtensor::"):
                        self.assertNotIn(unwanted, text, name)
        self.assertGreater(seen, 100)


if __name__ == "__main__":
    unittest.main()
