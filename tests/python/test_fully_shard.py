"""fully_shard in less common programs: units without a root, tied weights, options."""

import copy
import random
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Partial, Replicate, Shard
from dtensor.fsdp import MixedPrecisionPolicy, fully_shard
from dtensor.parallel import ColwiseParallel, parallelize_module

torch.manual_seed(0)
ROWS = torch.randn(12, 6).double()
LAYERS = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double() for _ in range(4)]


class RegularInputs(unittest.TestCase):
    """Each rank has its own rows: gradients of parameters are means over ranks, gradients of inputs are local."""

    def check(self, layers, sharded, ranks, shape, names):
        reference = copy.deepcopy(layers)
        own = [part.clone().requires_grad_() for part in ROWS.chunk(ranks)]
        for part in own:
            (nn.Sequential(*reference)(part).square().mean() / ranks).backward()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=names)
            mine = copy.deepcopy(layers)
            for index in sharded:
                fully_shard(mine[index], mesh=mesh)
            x = ROWS.chunk(ranks)[dtensor.rank()].clone().requires_grad_()
            nn.Sequential(*mine)(x).square().mean().backward()
            torch.testing.assert_close(x.grad, own[dtensor.rank()].grad * ranks)
            grads = [mine[index][0].weight.grad.full_tensor() for index in sharded]
            return grads, [mine[i][0].weight.grad for i in range(len(mine)) if i not in sharded]

        results = dtensor.run(ranks, on_rank)
        for grads, _ in results:
            for index, grad in zip(sharded, grads):
                torch.testing.assert_close(grad, reference[index][0].weight.grad)
        for at, index in enumerate(i for i in range(len(layers)) if i not in sharded):
            torch.testing.assert_close(sum(left[at] for _, left in results) / ranks, reference[index][0].weight.grad)

    def test_units_without_a_root(self):
        self.check(LAYERS[:2], [0, 1], 2, (2,), ("dp",))

    def test_random_subsets_of_layers_are_units(self):
        draw = random.Random(0)
        for _ in range(6):
            ranks, shape, names = draw.choice([(2, (2,), ("dp",)), (3, (3,), None), (4, (2, 2), ("replicate", "shard"))])
            count = draw.randint(1, 4)
            self.check(LAYERS[:count], sorted(draw.sample(range(count), draw.randint(1, count))), ranks, shape, names)

    def test_double_backward(self):
        """A penalty on the gradients of the inputs, as for regular modules."""

        def penalty(module, x):
            (grad,) = torch.autograd.grad(module(x).pow(3).mean(), x, create_graph=True)
            grad.square().sum().backward()
            return x.grad

        def on_rank(ranks):
            mesh = dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
            module = nn.Sequential(*(fully_shard(copy.deepcopy(layer), mesh=mesh) for layer in LAYERS[:2]))
            own = penalty(module, ROWS.chunk(ranks)[dtensor.rank()].clone().requires_grad_())
            return own, [p.grad.full_tensor() for p in module.parameters()]

        for ranks in (2, 3):
            reference = nn.Sequential(*copy.deepcopy(LAYERS[:2]))
            expected = [penalty(reference, rows.clone().requires_grad_()) for rows in ROWS.chunk(ranks)]
            for (own, grads), theirs in zip(dtensor.run(ranks, on_rank, ranks), expected):
                torch.testing.assert_close(own, theirs)
                for grad, p in zip(grads, reference.parameters()):
                    torch.testing.assert_close(grad, p.grad / ranks)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 8)
        self.up = nn.Linear(8, 8)
        self.head = nn.Linear(8, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.up(self.embed(ids))))


TIED, IDS = Tied(), torch.randint(0, 6, (4, 5))


class MixedPrecision(unittest.TestCase):
    def test_a_tied_weight_is_cast_at_every_use(self):
        reference = copy.deepcopy(TIED)
        reference(IDS).square().mean().backward()

        def on_rank(units):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module, seen = copy.deepcopy(TIED), []
            for part in (module.embed, module.up, module.head):
                part.register_forward_hook(lambda m, args, y: seen.append(m.weight.dtype))
            for part in [*(module.get_submodule(name) for name in units), module]:
                fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
            module(IDS.chunk(2)[dtensor.rank()]).float().square().mean().backward()
            self.assertEqual(seen, [torch.bfloat16] * 3)
            self.assertIs(module.head.weight, module.embed.weight)
            for p, q in zip(module.parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=0.05, atol=0.01)

        for units in [[], ["embed"], ["head"], ["up"], ["embed", "head"]]:
            with self.subTest(units):
                dtensor.run(2, on_rank, units)


class TiedWeights(unittest.TestCase):
    def test_stay_tied_for_any_units(self):
        reference = copy.deepcopy(TIED)
        reference(IDS).square().mean().backward()

        def on_rank(units):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = copy.deepcopy(TIED)
            for part in [*(module.get_submodule(name) for name in units), module]:
                fully_shard(part, mesh=mesh)
            self.assertIs(module.head.weight, module.embed.weight)
            module(IDS.chunk(2)[dtensor.rank()]).square().mean().backward()
            for p, q in zip(module.parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

        for units in [["embed"], ["head", "up"], ["head", "embed"]]:
            dtensor.run(2, on_rank, units)


class WithTensorParallelism(unittest.TestCase):
    """Units over one axis of a mesh, where some, all or none of their parameters are sharded on the other axis."""

    def test_any_parts_are_units(self):
        reference = copy.deepcopy(TIED).double()
        reference.head.weight = nn.Parameter(reference.head.weight.detach().clone())
        expected = reference(IDS)
        expected.square().mean().backward()

        def on_rank(units, wraps):
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            module = copy.deepcopy(reference)
            module.zero_grad()
            style = ColwiseParallel(output_layouts=Replicate(), use_local_output=wraps)
            parallelize_module(module, mesh["tp"], {"up": style})
            for part in [*(module.get_submodule(name) for name in units), module]:
                fully_shard(part, mesh=mesh["dp"])
            own = IDS.chunk(2)[mesh.get_local_rank("dp")]
            ids = own if wraps else dtensor.distribute_tensor(IDS, mesh, [Shard(0), Replicate()])
            y = module(ids)
            y.square().mean().backward()
            torch.testing.assert_close(y if wraps else y.full_tensor(), reference(own) if wraps else expected)
            for p, q in zip(module.parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

        for units in [[], ["embed"], ["up", "head"], ["embed", "up", "head"]]:
            for wraps in [True, False]:
                with self.subTest(units, wraps=wraps):
                    dtensor.run(4, on_rank, units, wraps)


class Calls(unittest.TestCase):
    def test_a_second_call_keeps_the_first_unit(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = copy.deepcopy(LAYERS[0])
            bias = module[0].bias
            fully_shard(module, mesh=mesh, ignored_params={bias})
            of_weight = self.gathered(module)
            self.assertGreater(of_weight, 0)
            fully_shard(module, mesh=mesh, ignored_params={bias})
            self.assertEqual(self.gathered(module), of_weight)
            fully_shard(module, mesh=mesh)  # a unit of the remaining parameters
            self.assertGreater(self.gathered(module), of_weight)

        dtensor.run(2, on_rank)

    def test_the_post_optim_event_may_be_none(self):
        """As CPU streams record it."""

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = fully_shard(copy.deepcopy(LAYERS[0]), mesh=mesh)
            module.set_post_optim_event(torch.cpu.current_stream().record_event())

        dtensor.run(2, on_rank)

    def test_to_empty_keeps_parameters_in_their_units(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            with torch.device("meta"):
                module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double()
            for part in (module[0], module):
                fully_shard(part, mesh=mesh)
            own = [p.placements for p in module.parameters()]
            module.to_empty(device="cpu")
            self.assertEqual([p.placements for p in module.parameters()], own)
            module.load_state_dict(reference.state_dict())
            before = module.fsdp_stats()
            rows = ROWS.chunk(2)[dtensor.rank()]
            torch.testing.assert_close(module(rows), reference(rows))
            self.assertEqual(module.fsdp_stats()["all_gathers"], before["all_gathers"] + 2)

        reference = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double()
        dtensor.run(2, on_rank)

    def gathered(self, module):
        module.unshard(async_op=True).wait()
        held = module.fsdp_stats()["gathered_bytes"]
        module.reshard()
        return held

    def test_shard_placement_fn_must_return_a_shard(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            for wrong in [Replicate(), Partial(), dtensor.StridedShard(0, 2)]:
                with self.assertRaisesRegex(ValueError, r"shard_placement_fn returned .* for '0.weight'"):
                    fully_shard(copy.deepcopy(LAYERS[0]), mesh=mesh, shard_placement_fn=lambda p: wrong)
            module = fully_shard(copy.deepcopy(LAYERS[0]), mesh=mesh, shard_placement_fn=lambda p: Shard(-1))
            self.assertEqual(module[0].weight.placements[0].dim, 1)

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
