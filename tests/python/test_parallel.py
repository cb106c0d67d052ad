"""parallelize_module and its styles: results of one device, and costs."""

import copy
import inspect
import unittest

import torch
import torch.distributed.tensor.parallel as their_parallel
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor import parallel
from dtensor.fsdp import fully_shard
from dtensor.parallel import (
    ColwiseParallel, PrepareModuleInput, PrepareModuleOutput, RowwiseParallel, SequenceParallel, parallelize_module,
)  # fmt: skip
from residual_net import IDS, NET, TARGETS, loss_of


class _Replicated(parallel.ParallelStyle):
    def _apply(self, module, device_mesh):
        return dtensor.distribute_module(module, device_mesh)


class Parallelize(unittest.TestCase):
    def test_names_and_signatures(self):
        for name in ["ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput",
                     "PrepareModuleInputOutput", "parallelize_module"]:  # fmt: skip
            theirs, ours = getattr(their_parallel, name), getattr(parallel, name)
            lacks = set(inspect.signature(theirs).parameters) - set(inspect.signature(ours).parameters)
            self.assertEqual(lacks, set(), name)

    PLAN = {  # DTensors between layers: global semantics
        "embed": RowwiseParallel(input_layouts=Replicate(), use_local_output=False),
        "blocks.*.norm": SequenceParallel(),
        "blocks.*.up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "blocks.*.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }

    def gradients(self, ranks, make, collectives=None):
        regular = copy.deepcopy(NET)
        expected = loss_of(regular, IDS, TARGETS)
        expected.backward()

        def check():
            module, ids, targets = make(copy.deepcopy(NET))
            with dtensor.CommDebugMode() as comm:
                loss = loss_of(module, ids, targets)
                loss.backward()
            self.assertAlmostEqual(loss.item(), expected.item(), delta=1e-11)
            for (name, p), q in zip(module.named_parameters(), regular.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-12, msg=name)
            return comm.get_comm_counts()

        return dtensor.run(ranks, check)[0]

    def untied(self, net):
        net.head.weight = nn.Parameter(net.head.weight.detach().clone())
        return net

    def test_tensor_parallel_with_regular_inputs(self):
        def make(net):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            plan = {"embed": RowwiseParallel(input_layouts=Replicate()), "blocks.*.norm": _Replicated(),
                    "blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}  # fmt: skip
            parallelize_module(net, mesh, plan)
            net.head.weight = net.embed.weight
            return net, IDS, TARGETS

        self.gradients(2, make)

    def test_sequence_parallel_with_data_parallel(self):
        def make(net):
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            parallelize_module(net, mesh["tp"], self.PLAN)
            net.head.weight = net.embed.weight
            for block in net.blocks:
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(net, mesh=mesh["dp"])
            self.assertEqual(str(net.blocks[0].up.weight.placements[0])[:2], "SS")
            return net, *[dtensor.distribute_tensor(t, mesh, [Shard(0), Replicate()]) for t in (IDS, TARGETS)]

        self.gradients(4, make)

    def test_prepare_inputs_and_outputs(self):
        class Add(nn.Module):
            def forward(self, a, b, c=None):
                return a + b if c is None else a + b + c

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            style = PrepareModuleInput(
                input_layouts=(Shard(0), None), desired_input_layouts=(Replicate(), None),
                input_kwarg_layouts={"c": Shard(0)}, desired_input_kwarg_layouts={"c": Replicate()},
            )  # fmt: skip
            module = parallelize_module(Add(), mesh, style)
            y = module(torch.ones(2, 2) * dtensor.rank(), torch.ones(2), c=torch.ones(2, 2))
            self.assertEqual((y.placements, y.tolist()), ((Replicate(),), [[2, 2], [2, 2], [3, 3], [3, 3]]))
            module = parallelize_module(
                Add(), mesh, PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate()))
            self.assertEqual(tuple(module(torch.ones(2), torch.ones(2)).shape), (4,))
            with self.assertRaisesRegex(AssertionError, "same length"):
                PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Shard(0), None))
            with self.assertRaisesRegex(ValueError, "matches no submodule"):
                parallelize_module(copy.deepcopy(NET), mesh, {"blocks.*.nope": ColwiseParallel()})

        dtensor.run(2, check)

    def test_losses_keep_classes_sharded(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            torch_logits = torch.arange(48.0).reshape(4, 12).sin().double()
            logits = dtensor.distribute_tensor(torch_logits, mesh, [Shard(1)]).requires_grad_()
            targets = torch.tensor([1, 5, 11, 0])
            with parallel.loss_parallel(), dtensor.CommDebugMode() as comm:
                nn.functional.cross_entropy(logits, targets).backward()
            self.assertEqual(logits.grad.placements, (Shard(1),))
            self.assertLess(comm.get_total_bytes(), torch_logits.numel() * 8)
            hidden, weight = torch_logits[:, :3].contiguous(), torch_logits.reshape(-1, 3)[:12].contiguous()
            split = dtensor.distribute_tensor(weight, mesh, [Shard(0)])
            chunked = parallel.linear_cross_entropy(hidden, split, targets, chunk=2)
            full = nn.functional.cross_entropy(hidden @ weight.T, targets)
            self.assertAlmostEqual(chunked.item(), full.item(), delta=1e-12)

        dtensor.run(2, check)


if __name__ == "__main__":
    unittest.main()
