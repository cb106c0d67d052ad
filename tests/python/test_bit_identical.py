"""dtensor.bit_identical(): training on a mesh has the bits of one device, and what has no such form is named."""

import hashlib
import unittest

import torch
import torch.nn.functional as F
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor.fsdp import fully_shard

BATCH, TOKENS, WIDTH = 4, 32, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        return x + F.gelu(self.out(y.transpose(1, 2).flatten(2)))


def trained(ranks, placement, optimizer, threads=1):
    """The parameters after three steps, as one vector."""

    def on_rank():
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(1)
        mesh = dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
        net = nn.Sequential(Block(), Block())
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / 4)
        for part in (*net, net):
            fully_shard(part, mesh=mesh)
        steps = optimizer(net.parameters())
        for _ in range(3):
            x = dtensor.distribute_tensor(torch.randn(BATCH, TOKENS, WIDTH, generator=generator), mesh, [placement])
            with dtensor.bit_identical(block=16):
                net(x).square().mean().backward()
                steps.step()
                steps.zero_grad()
        return torch.cat([p.detach().full_tensor().flatten() for p in net.parameters()])

    return dtensor.run(ranks, on_rank)[0]


class Training(unittest.TestCase):
    def test_meshes_have_the_bits_of_one_device(self):
        for optimizer in (lambda p: torch.optim.AdamW(p, lr=1e-2), lambda p: dtensor.optim.AdamW(p, lr=1e-2)):
            expected = trained(1, Replicate(), optimizer)
            self.assertTrue(expected.isfinite().all())
            for ranks, placement, threads in ((1, Replicate(), 2), (2, Shard(0), 1), (4, Shard(0), 1), (2, Shard(1), 1)):
                actual = trained(ranks, placement, optimizer, threads)
                self.assertTrue(torch.equal(actual.view(torch.int32), expected.view(torch.int32)), (ranks, placement, threads))


class ContentHash(unittest.TestCase):
    def test_it_is_the_hash_of_the_full_tensor(self):
        full = torch.arange(15.0).view(5, 3)
        expected = hashlib.sha256(full.numpy().tobytes()).hexdigest()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            return [dtensor.bit_identical.content_hash(dtensor.distribute_tensor(full, mesh, [p])) for p in (Shard(0), Shard(1))]

        self.assertEqual(dtensor.run(2, on_rank), [[expected] * 2] * 2)
        self.assertEqual(dtensor.bit_identical.content_hash(full.t().contiguous().t()), expected)


class Refusals(unittest.TestCase):
    def test_an_operator_without_a_form_is_named(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            x = dtensor.distribute_tensor(torch.ones(4), mesh, [Shard(0)])
            with dtensor.bit_identical(), self.assertRaisesRegex(NotImplementedError, "aten::cumsum.* has no bit-identical form"):
                x.cumsum(0)
            return x.cumsum(0).full_tensor().tolist()

        self.assertEqual(dtensor.run(2, on_rank), [[1, 2, 3, 4]] * 2)

    def test_block_sizes_out_of_range_are_refused(self):
        with self.assertRaisesRegex(ValueError, r"expected a block size in \[8, 512\], got 4"):
            dtensor.bit_identical(4).__enter__()


if __name__ == "__main__":
    unittest.main()
