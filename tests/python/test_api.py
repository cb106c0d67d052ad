"""Names and signatures equal those of torch.distributed.tensor, so that a program needs to change only its imports."""

import inspect
import os
import re
import types
import unittest

import torch
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor as theirs
import torch.distributed.tensor.debug
import torch.distributed.tensor.parallel
from torch.distributed.tensor import experimental as their_experiments

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from test_stubs import bound_parameters


def parameters(fn):
    return list(inspect.signature(fn).parameters)


DOCS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../docs/python.md")


def left_out():
    """The names that docs/python.md lists as left out: `module.Class.name`, `module.function(argument=)`."""
    with open(DOCS) as file:
        section = file.read().split("## Left out on purpose")[1].split("What has the same name and differs")[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for column in first for name in re.findall(r"`([^`]+)`", column)}


def signature(fn):
    """Names of parameters; of C++ functions those in pybind11's docstring. None if they are unknown."""
    overloads = [bound_parameters(re.sub(r"^\d+\. ", "", line)) for line in (getattr(fn, "__doc__", None) or "").splitlines()]
    names = [name for overload in overloads if overload is not None for name, _ in overload]
    if names:
        return names
    try:
        return [name for name in inspect.signature(fn).parameters if name not in ("self", "args", "kwargs")]
    except (TypeError, ValueError):
        return None


def lacking(path, their, our):
    """Public names and arguments of ``their`` object that ``our`` object lacks, as paths."""
    if isinstance(their, type):
        constructor = their.__init__ if isinstance(their.__init__, types.FunctionType) else None
        wanted = [p for p in (signature(constructor) if constructor else []) if not p.startswith("_")]
        ours = signature(our.__init__) if not inspect.isfunction(vars(our).get("__new__")) else signature(our.__new__)
        found = {f"{path}({name}=)" for name in wanted if ours is not None and name not in ours}
        for name in vars(their):
            if not name.startswith("_"):
                found |= lacking_member(f"{path}.{name}", getattr(their, name), our, name)
        return found
    wanted, ours = signature(their), signature(our)
    return {f"{path}({name}=)" for name in wanted or [] if ours is not None and name not in ours}


def lacking_member(path, their, our, name):
    if not hasattr(our, name) or (getattr(our, name).__doc__ or "").startswith("Not supported"):
        return {path}
    return lacking(path, their, getattr(our, name)) if callable(their) else set()


class Names(unittest.TestCase):
    MODULES = {
        "tensor": (theirs, dtensor),
        "tensor.parallel": (torch.distributed.tensor.parallel, dtensor.parallel),
        "tensor.experimental": (their_experiments, dtensor.experimental),
        "tensor.debug": (torch.distributed.tensor.debug, dtensor.debug),
        "device_mesh": (torch.distributed.device_mesh, dtensor),
        "fsdp": (torch.distributed.fsdp, dtensor.fsdp),
    }
    VALUES = {"tensor.DTensor", "fsdp.FSDPModule"}  # created by functions, not by calling the class

    def test_missing_names_are_documented(self):
        found = set()
        for path, (their, our) in self.MODULES.items():
            for name in their.__all__:
                found |= lacking_member(f"{path}.{name}", getattr(their, name), our, name)
        found = {name for name in found if not name.startswith(tuple(f"{value}(" for value in self.VALUES))}
        self.assertEqual(found, {name for name in left_out() if name.startswith(tuple(self.MODULES))})

    def test_all_names_of_torch_exist(self):
        self.assertEqual([name for name in theirs.__all__ if not hasattr(dtensor, name)], [])

    def test_signatures_match_torch(self):
        for name in ["distribute_tensor", "distribute_module"]:
            self.assertEqual(parameters(getattr(dtensor, name)), parameters(getattr(theirs, name)), name)
        for name in ["zeros", "ones", "empty", "full", "rand", "randn"]:
            lacks = set(parameters(getattr(theirs, name))) - set(parameters(getattr(dtensor, name)))
            self.assertLessEqual(lacks, {"layout"}, name)
        self.assertEqual(parameters(DTensor.from_local), parameters(theirs.DTensor.from_local))
        for name in ["to_local", "full_tensor", "redistribute"]:
            self.assertEqual(parameters(getattr(DTensor, name)), parameters(getattr(theirs.DTensor, name)), name)
        self.assertTrue(hasattr(their_experiments, "implicit_replication"))
        with dtensor.implicit_replication():
            pass

    def test_meshes(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            self.assertEqual(mesh.shape, (2, 2))
            self.assertEqual(mesh.mesh.tolist(), [[0, 1], [2, 3]])
            self.assertEqual(mesh.mesh_dim_names, ("dp", "tp"))
            self.assertEqual((mesh.ndim, mesh.size(), mesh.size(0), mesh.device_type), (2, 4, 2, "cpu"))
            self.assertEqual(mesh.get_rank(), dtensor.rank())
            self.assertEqual(list(mesh.get_coordinate()), [dtensor.rank() // 2, dtensor.rank() % 2])
            self.assertEqual(mesh.get_local_rank("tp"), dtensor.rank() % 2)
            self.assertEqual(mesh["tp"].shape, (2,))
            self.assertEqual(mesh["dp", "tp"], mesh)
            self.assertEqual(mesh["tp"].get_group().size, 2)
            self.assertEqual(mesh._flatten("all").shape, (4,))
            self.assertEqual(hash(mesh), hash(dtensor.DeviceMesh("cpu", [[0, 1], [2, 3]], ["dp", "tp"])))
            self.assertIn("tp=2", repr(mesh))
            with self.assertRaisesRegex(KeyError, "ep"):
                mesh["ep"]
            with self.assertRaises(IndexError):
                mesh.size(2)
            with self.assertRaisesRegex(RuntimeError, "ranks"):
                dtensor.init_device_mesh("cpu", (5,))
            for ranks in ([0.4, 1.2], torch.tensor([[0.0], [1.0]]), [0j], [True, False]):  # convertible to [0, 1]
                with self.assertRaisesRegex(TypeError, "expected integer ranks, got"):
                    dtensor.DeviceMesh("cpu", ranks)

        dtensor.run(4, check)

    def test_placements(self):
        self.assertIsInstance(Shard(1), Shard)
        self.assertIsInstance(Shard(1), dtensor.Placement)
        self.assertNotIsInstance(Replicate(), Shard)
        self.assertIsInstance(Partial("max"), Partial)
        self.assertEqual((Shard(1).dim, Partial("avg").reduce_op), (1, "avg"))
        self.assertTrue(Shard(1).is_shard(1) and not Shard(1).is_shard(0) and Partial().is_partial("sum"))
        self.assertEqual(repr([Shard(2), Replicate(), Partial()]), "[Shard(dim=2), Replicate(), Partial(sum)]")
        self.assertEqual({Shard(0), Shard(0), Replicate()}, {Shard(0), Replicate()})
        with self.assertRaisesRegex(ValueError, "nope"):
            Partial("nope")
        for placement in [dtensor.StridedShard(0, 2), dtensor.RaggedShard(0, [3, 0]), dtensor.ZigzagShard(1)]:
            self.assertEqual(dtensor.Placement.parse(str(placement)), placement)


if __name__ == "__main__":
    unittest.main()
