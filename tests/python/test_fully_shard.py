"""fully_shard where programs are not the plainest: units without a root, tied weights, options."""

import copy
import random
import unittest

import torch
from torch import nn

import dtensor
from dtensor.fsdp import fully_shard

torch.manual_seed(0)
ROWS = torch.randn(12, 6).double()
LAYERS = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double() for _ in range(4)]


class PlainRows(unittest.TestCase):
    """Each rank's rows are its own: gradients of parameters are means over ranks, those of inputs the rank's own."""

    def check(self, layers, sharded, ranks, shape, names):
        plain = copy.deepcopy(layers)
        own = [part.clone().requires_grad_() for part in ROWS.chunk(ranks)]
        for part in own:
            (nn.Sequential(*plain)(part).square().mean() / ranks).backward()

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
                torch.testing.assert_close(grad, plain[index][0].weight.grad)
        for at, index in enumerate(i for i in range(len(layers)) if i not in sharded):
            torch.testing.assert_close(sum(left[at] for _, left in results) / ranks, plain[index][0].weight.grad)

    def test_units_without_a_root_follow_each_other(self):
        self.check(LAYERS[:2], [0, 1], 2, (2,), ("dp",))

    def test_any_layers_are_units(self):
        draw = random.Random(0)
        for _ in range(6):
            ranks, shape, names = draw.choice([(2, (2,), ("dp",)), (3, (3,), None), (4, (2, 2), ("replicate", "shard"))])
            count = draw.randint(1, 4)
            self.check(LAYERS[:count], sorted(draw.sample(range(count), draw.randint(1, count))), ranks, shape, names)


if __name__ == "__main__":
    unittest.main()
