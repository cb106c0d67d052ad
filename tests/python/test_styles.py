"""Plans and distributed modules with tied weights, with values that differ between ranks, and with several outputs."""

import copy
import unittest

import torch
import torch.distributed.tensor.parallel
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor.parallel import (
    ColwiseParallel, ParallelStyle, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput, RowwiseParallel,
    SequenceParallel, parallelize_module,
)  # fmt: skip
from test_fully_shard import IDS, TIED

ROWS = RowwiseParallel(input_layouts=Replicate())


class Tied(unittest.TestCase):
    """Tied parameters stay tied: the gradient is the sum of both uses."""

    def check(self, distribute, placement):
        reference = copy.deepcopy(TIED)
        reference(IDS).square().mean().backward()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            module = distribute(copy.deepcopy(TIED), mesh)
            self.assertIs(module.head.weight, module.embed.weight)
            self.assertEqual(module.embed.weight.placements, (placement,))
            module(IDS).square().mean().backward()
            torch.testing.assert_close(module.head.weight.grad.full_tensor(), reference.head.weight.grad)

        dtensor.run(2, on_rank)

    def test_in_a_plan(self):
        for plan in [{"embed": ROWS, "head": ColwiseParallel(output_layouts=Replicate())}, {"embed": ROWS}]:
            self.check(lambda module, mesh: parallelize_module(module, mesh, plan), Shard(0))

    def test_in_a_distributed_module(self):
        def split(name, module, mesh):
            if name == "head":
                module.weight = nn.Parameter(dtensor.distribute_tensor(module.weight.detach(), mesh, [Shard(1)]))

        self.check(lambda module, mesh: dtensor.distribute_module(module, mesh), Replicate())
        self.check(lambda module, mesh: dtensor.distribute_module(module, mesh, split), Shard(1))

    def test_conflicting_entries_are_refused(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            with self.assertRaisesRegex(ValueError, "'embed.weight' and 'head.weight' are one tensor"):
                parallelize_module(copy.deepcopy(TIED), mesh, {"embed": ColwiseParallel(), "head": ColwiseParallel()})

        dtensor.run(2, on_rank)


class Placed(unittest.TestCase):
    def test_parameters_sharded_over_other_axes_are_refused(self):
        """Each slice of the mesh would redistribute them separately, and wait for the others."""

        def on_rank(names):
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            module = dtensor.fully_shard(copy.deepcopy(TIED), mesh=mesh[names])
            with self.assertRaisesRegex(ValueError, "'weight' of Linear is .* call parallelize_module first"):
                parallelize_module(module, mesh["tp"], {"up": ColwiseParallel()})
            full = dtensor.distribute_module(copy.deepcopy(TIED), mesh)
            parallelize_module(full, mesh["tp"], {"up": ColwiseParallel()})
            self.assertEqual(full.up.weight.placements, (Shard(0),))

        dtensor.run(4, on_rank, "dp", timeout=20)


class Sources(unittest.TestCase):
    def test_values_of_src_data_rank(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            found = []
            for style in [ColwiseParallel(), RowwiseParallel(), SequenceParallel()]:
                for source in [0, 1]:
                    module = nn.Linear(4, 4)
                    nn.init.constant_(module.weight, dtensor.rank())
                    nn.init.constant_(module.bias, dtensor.rank())
                    plan = {"0": style} if source == 1 else style
                    full = nn.Sequential(module) if source == 1 else module
                    parallelize_module(full, mesh, plan, src_data_rank=source)
                    found.append((module.weight.sum().item(), module.bias.sum().item()))
            return found

        self.assertEqual(dtensor.run(2, on_rank), [[(0, 0), (16, 4)] * 3] * 2)

    def test_src_data_rank_none_does_not_communicate(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            mine = torch.arange(12.0).view(4, 3) + 100 * dtensor.rank()
            for placements in ([Shard(0), Replicate()], [Replicate(), Shard(1)], [Shard(0), Shard(0)], None):
                same = dtensor.distribute_tensor(torch.arange(12.0).view(4, 3), mesh, placements)
                with dtensor.CommDebugMode() as counts:
                    part = dtensor.distribute_tensor(mine, mesh, placements, src_data_rank=None)
                self.assertEqual(counts.get_total_counts(), 0)
                self.assertEqual((part.shape, part.placements), (same.shape, same.placements))
                self.assertTrue(torch.equal(part.to_local(), same.to_local() + 100 * dtensor.rank()))
                self.assertNotEqual(part.to_local().untyped_storage().data_ptr(), mine.untyped_storage().data_ptr())
            module = nn.Linear(4, 4)
            with dtensor.CommDebugMode() as counts:
                parallelize_module(module, mesh["tp"], ColwiseParallel(), src_data_rank=None)
            self.assertEqual(counts.get_total_counts(), 0)

        dtensor.run(4, on_rank, timeout=20)

    def test_src_data_rank_is_an_index_into_the_mesh(self):
        """For slices, and for a mesh in another order than the world."""

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            turned = dtensor.DeviceMesh("cpu", [3, 1, 2, 0])
            mine = torch.full((4,), dtensor.rank())
            for on in (mesh["tp"], mesh["dp"], turned, mesh):
                for source in range(on.size()):
                    full = dtensor.distribute_tensor(mine, on, src_data_rank=source).full_tensor()
                    self.assertEqual(full.tolist(), [on.mesh.flatten()[source]] * 4)
                for none in (on.size(), -1):
                    with self.assertRaisesRegex(ValueError, f"src_data_rank={none} is out of range for the {on.size()} ranks"):
                        dtensor.distribute_tensor(mine, on, src_data_rank=none)

        dtensor.run(4, on_rank, timeout=20)


class Inputs(unittest.TestCase):
    def test_positional_and_keyword_arguments(self):
        class Difference(nn.Module):
            def forward(self, a, b, *, c=0):
                return a - b + c

        def on_rank():
            mesh, rank = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), dtensor.rank()
            style = PrepareModuleInput(input_layouts=(Shard(0), Shard(0)), desired_input_layouts=(Replicate(), Shard(0)))
            module = parallelize_module(Difference(), mesh, style)
            a, b = torch.arange(2.0) + 2 * rank, torch.ones(2) * rank
            for y in [module(a, b), module(a, b=b), module(b=b, a=a), module(a, b=b, c=torch.zeros(4))]:
                self.assertEqual(y.tolist(), [0, 1, 1, 2])
            layer = nn.Linear(2, 4)
            nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
            parallelize_module(layer, mesh, ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0)))
            self.assertEqual(layer(input=a[None]).tolist(), layer(a[None]).tolist())
            self.assertEqual(layer(input=a[None]).tolist(), [[1 + 4 * rank] * 4])

        dtensor.run(2, on_rank)


    def test_keyword_arguments_of_prepare_module_input_output(self):
        class Scale(nn.Module):
            def forward(self, x, *, factor):
                return x * factor

        x = torch.arange(8.0).reshape(4, 2)

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            style = PrepareModuleInputOutput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), input_kwarg_layouts={"factor": Shard(0)},
                desired_input_kwarg_layouts={"factor": Replicate()}, output_layouts=Replicate(), desired_output_layouts=Shard(0),
            )  # fmt: skip
            own = x.chunk(2)[dtensor.rank()]
            torch.testing.assert_close(parallelize_module(Scale(), mesh, style)(own, factor=own), own * own)

        dtensor.run(2, on_rank)

    def test_local_inputs(self):
        class Rows(nn.Module):
            def forward(self, x, y):
                return x.shape, isinstance(x, dtensor.DTensor), y

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            layouts = {"input_layouts": (Shard(0), None), "desired_input_layouts": (Shard(1), None)}
            module = parallelize_module(Rows(), mesh, PrepareModuleInput(**layouts, use_local_output=True))
            x = torch.ones(2, 6)
            self.assertEqual(module(x, 3), ((4, 3), False, 3))
            self.assertEqual(module(dtensor.distribute_tensor(x, mesh, [Replicate()]), 3), ((2, 3), False, 3))
            for inputs in [(x,), (x, 3, 4)]:
                with self.assertRaisesRegex(ValueError, "module inputs and input_layouts should have same length!"):
                    module(*inputs)

        dtensor.run(2, on_rank)


class Outputs(unittest.TestCase):
    def test_the_number_of_layouts_must_match_the_outputs(self):
        class Several(nn.Module):
            def forward(self, x):
                return x, x + 1, "text"

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            for few in [Shard(0), (Shard(0), None), (Shard(0), None, None, None)]:
                style = PrepareModuleOutput(output_layouts=few, desired_output_layouts=few)
                with self.assertRaisesRegex(ValueError, "3 outputs of Several"):
                    parallelize_module(Several(), mesh, style)(torch.ones(2))
            layouts = {"output_layouts": (Shard(0), None, None), "desired_output_layouts": (Replicate(), None, None)}
            x, y, text = parallelize_module(Several(), mesh, PrepareModuleOutput(**layouts))(torch.ones(2))
            self.assertEqual((x.shape[0], y.tolist(), text), (4, [2, 2], "text"))

        dtensor.run(2, on_rank)


class Attention(nn.Module):
    """Written for PyTorch's tensor parallelism: views infer the number of heads of this rank."""

    def __init__(self, heads, width):
        super().__init__()
        self.width, self.norm = width, nn.LayerNorm(heads * width)
        self.q, self.k, self.v, self.o = (nn.Linear(heads * width, heads * width) for _ in range(4))

    def forward(self, x):
        return x + self.attend(self.norm(x))

    def attend(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class LocalOutputs(unittest.TestCase):
    """With use_local_output=True outputs are regular tensors, for all kinds of inputs."""

    def train(self, ranks, plan, split):
        torch.manual_seed(ranks)
        reference = Attention(4, 2).double()
        x = torch.randn(2, 8, 8, dtype=torch.float64)
        expected = reference(x)
        expected.square().sum().backward()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
            module = parallelize_module(copy.deepcopy(reference), mesh, plan)
            module.zero_grad()
            part = (lambda t: t.chunk(ranks, 1)[dtensor.rank()]) if split else (lambda t: t)
            y = module(part(x))
            self.assertNotIsInstance(y, dtensor.DTensor)
            torch.testing.assert_close(y, part(expected))
            y.square().sum().backward()
            for (name, p), q in zip(module.named_parameters(), reference.parameters()):
                grad = p.grad.full_tensor() if isinstance(p.grad, dtensor.DTensor) else p.grad
                torch.testing.assert_close(grad, q.grad, msg=name)

        dtensor.run(ranks, on_rank)

    def test_views_of_local_heads_and_residuals(self):
        heads = {name: ColwiseParallel() for name in "qkv"}
        for ranks in (1, 2, 4):
            self.train(ranks, {**heads, "o": RowwiseParallel()}, False)

    def test_a_sharded_sequence(self):
        heads = {name: ColwiseParallel(input_layouts=Shard(1)) for name in "qkv"}
        for ranks in (1, 2, 4):
            self.train(ranks, {"norm": SequenceParallel(), **heads, "o": RowwiseParallel(output_layouts=Shard(1))}, True)

    def test_dtensor_inputs(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            x = dtensor.distribute_tensor(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), mesh["tp"])
            for local in (True, False):
                column, row = ColwiseParallel(use_local_output=local), RowwiseParallel(use_local_output=local)
                up, down = parallelize_module(nn.Linear(6, 8), mesh["tp"], column), parallelize_module(nn.Linear(8, 6), mesh["tp"], row)
                y = up(x)
                self.assertEqual((y.shape, isinstance(y, dtensor.DTensor)), ((4, 4) if local else (4, 8), not local))
                z = down(y)
                self.assertEqual((z.shape, isinstance(z, dtensor.DTensor)), ((4, 6), not local))

        dtensor.run(4, on_rank)


    def test_collectives_of_colwise_and_rowwise_layers(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
            parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(input_layouts=Shard(-1))})
            with dtensor.CommDebugMode() as comm:
                hidden = net[1](net[0](torch.ones(3, 6).t().contiguous().t()))
            self.assertEqual((hidden.shape, comm.get_total_counts()), ((3, 4), 0))
            with dtensor.CommDebugMode() as comm:
                net[2](dtensor.DTensor.from_local(hidden, mesh, [Shard(1)], shape=(3, 8), stride=(8, 1)))
            self.assertEqual(comm.get_comm_counts(), {"all_reduce": 1})

        dtensor.run(2, on_rank)


class Styles(unittest.TestCase):
    def test_custom_styles_implement_apply(self):
        class Frozen(ParallelStyle):
            def _apply(self, module, device_mesh):
                return dtensor.distribute_module(module, device_mesh).requires_grad_(False)

        class Nothing(ParallelStyle):
            pass

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            module = parallelize_module(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), mesh, {"0": Frozen()})
            self.assertEqual([p.requires_grad for p in module.parameters()], [False, False, True, True])
            with self.assertRaisesRegex(TypeError, "parallelize_plan"):
                parallelize_module(module, mesh, {"0": torch.nn.Linear})

        dtensor.run(2, on_rank)
        with self.assertRaisesRegex(TypeError, "_apply"):
            Nothing()

    def test_without_a_plan(self):
        def on_rank():
            with self.assertWarnsRegex(UserWarning, "do nothing"):
                parallelize_module(nn.Linear(2, 2), dtensor.init_device_mesh("cpu", (1,)))

        dtensor.run(1, on_rank)

    def test_repr_shows_options(self):
        for style in (ColwiseParallel(), RowwiseParallel(use_local_output=False), SequenceParallel(sequence_dim=2)):
            theirs = repr(getattr(torch.distributed.tensor.parallel, type(style).__name__)(**options_of(style)))
            self.assertEqual(repr(style), theirs)


def options_of(style):
    return {name: getattr(style, name) for name in ("sequence_dim", "use_local_output") if hasattr(style, name)}


if __name__ == "__main__":
    unittest.main()
