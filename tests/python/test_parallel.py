"""fully_shard, parallelize_module, the library's optimizers and checkpoints: results of one device, and costs."""

import copy
import inspect
import os
import shutil
import tempfile
import unittest

import torch
import torch.distributed.fsdp as their_fsdp
import torch.distributed.tensor.parallel as their_parallel
from torch import nn

import dtensor
from dtensor import DTensor, Replicate, Shard
from dtensor import parallel
from dtensor.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from dtensor.parallel import (
    ColwiseParallel, PrepareModuleInput, PrepareModuleOutput, RowwiseParallel, SequenceParallel, parallelize_module,
)  # fmt: skip


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=8, classes=6):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
NET = Net().double()
IDS, TARGETS = torch.randint(0, 6, (8, 5)), torch.randint(0, 6, (8, 5))


def loss_of(net, ids, targets):
    return nn.functional.cross_entropy(net(ids).flatten(0, 1), targets.flatten())


def reference(steps=3, net=NET, make=lambda ps: torch.optim.SGD(ps, lr=0.1), loss=loss_of):
    regular = copy.deepcopy(net)
    optimizer, losses = make(regular.parameters()), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(regular, IDS, TARGETS)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return regular, losses


def rows(t, rank, ranks):
    return t.chunk(ranks)[rank]


class FullyShard(unittest.TestCase):
    def shard(self, mesh, net=NET, blocks=None, **options):
        module = copy.deepcopy(net)
        for block in module.blocks:
            fully_shard(block, mesh=mesh, **(blocks or options))
        return fully_shard(module, mesh=mesh, **options)

    def test_signature_matches_torch(self):
        lacks = set(inspect.signature(their_fsdp.fully_shard).parameters) - set(inspect.signature(fully_shard).parameters)
        self.assertLessEqual(lacks, {"dp_mesh_dims"})

    def train(self, mesh, ids, targets, module, steps=3):
        optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(module, ids, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def check_equal(self, module, regular):
        for (name, p), q in zip(module.named_parameters(), regular.parameters()):
            torch.testing.assert_close(p.detach().full_tensor(), q.detach(), rtol=1e-9, atol=1e-12, msg=name)

    def test_dtensor_inputs(self):
        regular, expected = reference()

        def check(shape, names):
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=names)
            module = self.shard(mesh)
            self.assertIsInstance(module, FSDPModule)
            self.assertIsInstance(module.blocks[0], (FSDPModule, Block))
            self.assertIs(module.head.weight, module.embed.weight)
            self.assertTrue(module.blocks[0].up.weight.placements[-1].is_storage)
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)] * mesh.ndim) for t in (IDS, TARGETS)]
            losses = self.train(mesh, ids, targets, module)
            for a, b in zip(losses, expected):
                self.assertAlmostEqual(a, b, delta=1e-11)
            self.check_equal(module, regular)

        dtensor.run(2, check, (2,), ("dp",))
        dtensor.run(3, check, (3,), ("dp",))
        dtensor.run(4, check, (2, 2), ("replicate", "shard"))

    def test_regular_inputs_are_each_ranks_rows(self):
        regular, expected = reference()

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = self.shard(mesh)
            ids, targets = (rows(t, dtensor.rank(), 2) for t in (IDS, TARGETS))
            self.assertNotIsInstance(module(ids), DTensor)
            losses = self.train(mesh, ids, targets, module)
            self.check_equal(module, regular)
            return losses

        both = dtensor.run(2, check)
        for a, b, one in zip(*both, expected):
            self.assertAlmostEqual((a + b) / 2, one, delta=1e-11)

    def test_collectives_of_a_step(self):
        def check(reshard):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = self.shard(mesh, reshard_after_forward=reshard)
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (IDS, TARGETS)]
            loss_of(module, ids, targets).backward()
            module.zero_grad()
            with dtensor.CommDebugMode() as comm:
                loss = loss_of(module, ids, targets)
                forward = comm.get_comm_counts()
                loss.backward()
            units = 4  # three blocks, and the root, whose tied weight is used at the beginning and at the end
            self.assertEqual(forward.get("all_gather"), units + 1 if reshard else units)
            self.assertEqual(comm.get_comm_counts()["all_gather"], units + 1 + 3 if reshard else units)
            self.assertEqual(comm.get_comm_counts()["reduce_scatter"], units)
            self.assertEqual(module.fsdp_stats()["gathered_bytes"], 0)

        dtensor.run(2, check, False)
        dtensor.run(2, check, True)

    def test_accumulation_without_sync(self):
        regular = copy.deepcopy(NET)
        (loss_of(regular, IDS[:4], TARGETS[:4]) + loss_of(regular, IDS[4:], TARGETS[4:])).backward()

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = self.shard(mesh)
            parts = []
            for sync, half in [(False, slice(0, 4)), (True, slice(4, 8))]:
                ids, targets = [dtensor.distribute_tensor(t[half], mesh, [Shard(0)]) for t in (IDS, TARGETS)]
                module.set_requires_gradient_sync(sync)
                with dtensor.CommDebugMode() as comm:
                    loss_of(module, ids, targets).backward()
                parts.append(comm.get_comm_counts().get("reduce_scatter", 0))
            self.assertEqual(parts, [0, 4])
            for (name, p), q in zip(module.named_parameters(), regular.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-12, msg=name)

        dtensor.run(2, check)

    def test_mixed_precision(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
            of_blocks = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
            module = self.shard(mesh, copy.deepcopy(NET).float(), blocks=of_blocks, mp_policy=policy)
            seen = []
            module.blocks[0].up.register_forward_hook(lambda m, a, y: seen.append((m.weight.dtype, y.dtype)))
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (IDS, TARGETS)]
            out = module(ids)
            self.assertEqual((seen, out.dtype), ([(torch.bfloat16, torch.bfloat16)], torch.float32))
            loss = nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten())
            loss.backward()
            self.assertIsInstance(module.blocks[0].up.weight, nn.Parameter)
            self.assertEqual({p.grad.dtype for p in module.parameters()}, {torch.float32})
            self.assertAlmostEqual(loss.item(), loss_of(NET, IDS, TARGETS).item(), delta=0.05)

        dtensor.run(2, check)

    def test_bad_arguments(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (1, 1, 1))
            with self.assertRaisesRegex(ValueError, "3 dimensions"):
                fully_shard(copy.deepcopy(NET), mesh=mesh)

        dtensor.run(1, check)


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


class _Replicated(parallel.ParallelStyle):
    def _apply(self, module, device_mesh):
        return dtensor.distribute_module(module, device_mesh)


class Optimizers(unittest.TestCase):
    def compare(self, make, theirs=None, rtol=1e-9):
        def scheduled(optimizer):
            torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5).step()
            return optimizer

        regular, losses = reference(3, NET, lambda ps: scheduled((theirs or make)(list(ps))))

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = fully_shard(copy.deepcopy(NET), mesh=mesh)
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (IDS, TARGETS)]
            optimizer = scheduled(make(list(module.parameters())))
            for step, expected in enumerate(losses):
                optimizer.zero_grad()
                loss = loss_of(module, ids, targets)
                loss.backward()
                if step == 2:  # saved and loaded in between
                    state = optimizer.state_dict()
                    optimizer = make(list(module.parameters()))
                    optimizer.load_state_dict(state)
                optimizer.step()
                self.assertAlmostEqual(loss.item(), expected, delta=1e-7 if rtol > 1e-8 else 1e-10)
            for p, q in zip(module.parameters(), regular.parameters()):
                torch.testing.assert_close(p.detach().full_tensor(), q.detach(), rtol=rtol, atol=1e-9)

        dtensor.run(2, check)

    def test_steps_equal_those_of_torch(self):
        ours, torchs = dtensor.optim, torch.optim
        self.compare(lambda ps: ours.AdamW(ps, lr=0.01), lambda ps: torchs.AdamW(ps, lr=0.01))
        self.compare(lambda ps: ours.AdamW(ps, lr=0.01, betas=(0.5, 0.7), fused=False),
                     lambda ps: torchs.AdamW(ps, lr=0.01, betas=(0.5, 0.7)))  # fmt: skip
        self.compare(lambda ps: ours.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
                     lambda ps: torchs.SGD(ps, lr=0.1, momentum=0.9, nesterov=True))  # fmt: skip
        self.compare(lambda ps: ours.Adagrad(ps, lr=0.1, initial_accumulator_value=0.1),
                     lambda ps: torchs.Adagrad(ps, lr=0.1, initial_accumulator_value=0.1))  # fmt: skip

    def test_shampoo_and_muon_are_the_same_on_every_layout(self):
        self.compare(lambda ps: dtensor.optim.Shampoo(ps, lr=0.01, start=1, frequency=1))
        self.compare(lambda ps: dtensor.optim.Muon([p for p in ps if p.dim() == 2], lr=0.01, bfloat16=False), rtol=1e-6)

    def test_clipping_and_errors(self):
        regular = copy.deepcopy(NET)
        loss_of(regular, IDS, TARGETS).backward()
        expected = nn.utils.clip_grad_norm_(regular.parameters(), 0.1).item()

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = fully_shard(copy.deepcopy(NET), mesh=mesh)
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (IDS, TARGETS)]
            loss_of(module, ids, targets).backward()
            with dtensor.CommDebugMode() as comm:
                norm = dtensor.optim.clip_grad_norm_(module.parameters(), 0.1)
            self.assertEqual(comm.get_total_counts(), 1)
            self.assertAlmostEqual(norm.item(), expected, delta=1e-12)
            with self.assertRaisesRegex(TypeError, "lr"):
                dtensor.optim.SGD(module.parameters(), lr="high").step()
            optimizer = dtensor.optim.SGD(module.parameters())
            optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "before the first step"):
                optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]})

        dtensor.run(2, check)


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "run")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def trained(self, shape, placement, load):
        mesh = dtensor.init_device_mesh("cpu", shape)
        module = copy.deepcopy(NET)
        if not load:
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(1.5)
        for m in module.modules():
            for key, p in m._parameters.items():
                if p is not None and key != "weight" or m is module.embed:
                    m._parameters[key] = nn.Parameter(dtensor.distribute_tensor(p.detach(), mesh, [placement] * len(shape)))
        module.head.weight = module.embed.weight
        dtensor.distribute_module(module, mesh)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1 if not load else 0.7)
        loss_of(module, IDS, TARGETS).backward()
        optimizer.step()
        return module, optimizer

    def test_any_layout_loads_what_another_saved(self):
        def save():
            module, optimizer = self.trained((2,), Shard(0), load=False)
            dtensor.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "note": "x"}, self.path)
            return [p.full_tensor().detach() for p in module.parameters()], optimizer.state[module.embed.weight]["exp_avg"].tolist()

        expected, average = dtensor.run(2, save)[0]

        def load():
            module, optimizer = self.trained((3,), Replicate(), load=True)
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 0, "note": ""}
            dtensor.load(state, self.path)
            optimizer.load_state_dict(state["optimizer"])
            self.assertEqual((state["step"], state["note"], optimizer.param_groups[0]["lr"]), (7, "x", 0.1))
            self.assertEqual(optimizer.state[module.embed.weight]["exp_avg"].tolist(), average)
            for p, q in zip(module.parameters(), expected):
                self.assertTrue(torch.equal(p.full_tensor(), q))

        dtensor.run(3, load)
        index = dtensor.checkpoint.read_index(self.path)
        self.assertEqual(index["tensors"]["model.embed.weight"], ([6, 8], torch.float64))
        self.assertEqual(index["values"]["step"], 7)

    def test_background_and_errors(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            t = dtensor.distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
            pending = dtensor.checkpoint.async_save({"t": t}, self.path)
            with torch.no_grad():
                t.zero_()
            pending.wait()
            dtensor.load({"t": t}, self.path)
            self.assertEqual(t.tolist(), [0, 1, 2, 3, 4])
            for wrong, text in [({"u": t}, "u"), ({"t": dtensor.ones(3, device_mesh=mesh)}, "t"), ({"t": t, "n": 1}, "n")]:
                with self.assertRaisesRegex(ValueError, text):
                    dtensor.load(wrong, self.path)
            with self.assertRaisesRegex(TypeError, "'x.f', got function"):
                dtensor.save({"x": {"f": rows}}, self.path)

        dtensor.run(2, check)

    def test_loads_safetensors_files(self):
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("safetensors is not installed")
        os.mkdir(self.path)
        file = os.path.join(self.path, "model.safetensors")
        state = {k: v.half() for k, v in NET.state_dict().items() if k != "head.weight"}
        save_file(state, file)

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = fully_shard(copy.deepcopy(NET), mesh=mesh)
            dtensor.checkpoint.load_safetensors(module, self.path)
            self.assertEqual(module.embed.weight.full_tensor().tolist(), state["embed.weight"].double().tolist())
            dtensor.save(module.state_dict(), os.path.join(self.folder, "out"))

        dtensor.run(2, check)
        again = load_file(os.path.join(self.folder, "out", "model.safetensors"))
        self.assertTrue(torch.equal(again["embed.weight"], state["embed.weight"].double()))


if __name__ == "__main__":
    unittest.main()
