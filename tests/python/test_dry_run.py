"""dtensor.simulate: one rank of a program without its peers, with the bytes that formulas give."""

import json
import os
import tempfile
import unittest

import torch
from torch import nn

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from dtensor.fsdp import fully_shard
from dtensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, LAYERS, ROWS, FSDP, TP = 1024, 3, 16, 8, 8
FLOAT = 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def train(steps=2):
    mesh = dtensor.init_device_mesh("cpu", (FSDP, TP), mesh_dim_names=("fsdp", "tp"))
    with torch.device("meta"):
        model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    for layer in model:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["fsdp"])
    model.to_empty(device="cpu")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for step in range(steps):
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            dtensor.begin_step()
    return dtensor.is_dry_run()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 16)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class DryRun(unittest.TestCase):
    def test_a_module_on_64_ranks(self):
        report = dtensor.simulate(FSDP * TP, train, rank=13)
        own = LAYERS * 2 * WIDTH * 4 * WIDTH // (FSDP * TP) * FLOAT  # parameters of this rank
        self.assertEqual((report.rank, report.ranks), (13, 64))
        self.assertEqual(report.peak_by_kind["gathered"], FSDP * own)  # without a root unit, layers stay gathered
        self.assertGreater(report.peak_bytes, (FSDP + 4) * own)  # also shards, gradients and two moments
        self.assertEqual(report.collectives["all_gather", "fsdp"], (LAYERS, (FSDP - 1) * own))
        self.assertEqual(report.collectives["reduce_scatter", "fsdp"][1], (FSDP - 1) * own)
        products = sum(count[1] for count in report.operators.values())
        product = 2 * ROWS * WIDTH * 4 * WIDTH // TP
        self.assertEqual(products, (3 * 2 * LAYERS - 1) * product)  # no gradient of the input

    def test_report(self):
        report = dtensor.simulate(FSDP * TP, train, 1)
        self.assertTrue(report.fits(10**12))
        self.assertFalse(report.fits(report.peak_bytes_before - 1))
        self.assertIn("does NOT fit", report.table(limit=1000))
        self.assertEqual(json.loads(report.json())["peak_bytes"], report.peak_bytes)
        self.assertEqual(report.peers, [])

    def test_values_do_not_exist(self):
        def read():
            return torch.randn(4096).sum().item()

        with self.assertRaisesRegex(RuntimeError, "depends on values of a tensor"):
            dtensor.simulate(4, read)
        dtensor.simulate(4, read, number=1.0)
        self.assertFalse(dtensor.is_dry_run())

    def test_staging_counts_the_buffers_of_processes(self):
        numel = 1 << 20

        def reduce():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            summand = DTensor.from_local(torch.zeros(numel), mesh, [Partial()])
            dtensor.begin_step()
            summand.redistribute(mesh, [Replicate()])

        peaks = [dtensor.simulate(2, reduce, staging=staging).peak_bytes for staging in (False, True)]
        self.assertEqual(peaks[1] - peaks[0], numel // 2 * FLOAT)  # each rank receives half of the other's summand

    def test_exceptions_of_the_program(self):
        def fail():
            raise KeyError("own")

        with self.assertRaises(KeyError) as caught:
            dtensor.simulate(4, fail, rank=3)
        self.assertIn("own", str(caught.exception))
        with self.assertRaisesRegex(RuntimeError, "expected a rank in"):
            dtensor.simulate(4, fail, rank=4)
        with self.assertRaisesRegex(TypeError, "fn must be callable"):
            dtensor.simulate(4, None)


class Loops(unittest.TestCase):
    """Calls of training loops, for which PyTorch's meta kernels are decompositions in Python."""

    def test_norms_and_clipping(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
            x = dtensor.randn(32, 64, device_mesh=mesh, placements=[Shard(0)])
            self.assertEqual(nn.functional.layer_norm(x, (64,)).placements, (Shard(0),))
            model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64))
            fully_shard(model, mesh=mesh)
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.assertEqual(model[1].weight.grad.placements, model[1].weight.placements)

        dtensor.simulate(4, on_rank, rank=1, number=1.0)

    def test_an_lstm(self):
        """oneDNN's layers have the results, the workspace and the peak of a real step."""
        ranks = 4

        def train(begin_step=dtensor.begin_step):
            model = Tagger()
            fully_shard(model, mesh=dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",)))
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            for step in range(2):
                logits = model(torch.ones(8, 20, 64))
                self.assertEqual(logits.shape, (8, 20, 16))
                logits.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    begin_step()

        def measured():
            with dtensor.MemoryTimeline() as memory:
                train(memory.reset_peak)
                return memory.peak()[0]

        report = dtensor.simulate(ranks, train)
        own = sum(p.numel() for p in Tagger().parameters()) * FLOAT // ranks
        self.assertEqual(report.collectives["all_gather", "dp"], (1, (ranks - 1) * own))
        self.assertEqual(report.collectives["reduce_scatter", "dp"], (1, (ranks - 1) * own))
        self.assertEqual(report.operators["aten::mkldnn_rnn_layer"][0], 4)  # layers and directions
        self.assertAlmostEqual(report.peak_bytes / dtensor.run(ranks, measured)[0], 1, delta=0.02)

    def test_kinds_of_memory_of_modules_and_optimizers_of_pytorch(self):
        def train(sharded, steps=2):
            mesh = dtensor.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
            with torch.device("meta"):
                model = nn.Linear(WIDTH, WIDTH, bias=False)
            if sharded:
                fully_shard(model, mesh=mesh)
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            for step in range(steps):
                model(torch.randn(1, WIDTH)).sum().backward()
                optimizer.step()
                if step == 0:
                    dtensor.begin_step()
                self.assertGreater(len(optimizer.state), 0)

        for sharded in (True, False):
            kinds = dtensor.simulate(4, train, sharded).peak_by_kind
            own = WIDTH * WIDTH * FLOAT // (4 if sharded else 1)
            self.assertEqual(kinds["parameters"], own)
            self.assertEqual(kinds["optimizer states"], 2 * own + FLOAT)  # two moments and the number of steps
            self.assertEqual(kinds["gradients"], own)

    def test_a_scaled_step_is_finite(self):
        """``number`` is what reads of a loss give, and no infinity that GradScaler found."""

        def train():
            model = nn.Linear(WIDTH, WIDTH)
            fully_shard(model, mesh=dtensor.init_device_mesh("cpu", (4,)))
            optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu")
            for _ in range(2):
                loss = model(torch.randn(4, WIDTH)).sum()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                loss.item()
            self.assertEqual(scaler.get_scale(), 65536.0)
            self.assertGreater(len(optimizer.state), 0)  # the optimizer did step

        dtensor.simulate(4, train, number=1.0)

    def test_checkpoints_are_neither_written_nor_read(self):
        def on_rank(folder):
            net, mesh = nn.Linear(64, 64), dtensor.init_device_mesh("cpu", (2,))
            fully_shard(net, mesh=mesh)
            optimizer, state = torch.optim.AdamW(net.parameters()), {"step": 7}
            state |= {"net": net, "optimizer": optimizer}
            series = dtensor.checkpoint.CheckpointSeries(folder)
            self.assertEqual(series.load_newest(state).path, "")
            for step in range(2):
                net(torch.ones(2, 64)).sum().backward()
                optimizer.step()
                series.async_save(state, step)
                series.save(state, step)
            series.finish()
            dtensor.save(state, f"{folder}/last")
            dtensor.load(state, f"{folder}/last")
            self.assertEqual(state["step"], 7)

        with tempfile.TemporaryDirectory() as parent:
            for rank in (0, 1):
                dtensor.simulate(2, on_rank, f"{parent}/run", rank=rank)
            self.assertEqual(os.listdir(parent), [])

    def test_masks_of_known_values(self):
        def on_rank():
            x = torch.randn(8, 1024)
            with self.assertRaisesRegex(RuntimeError, "aten::index.Tensor.*depends on values"):
                x[x[:, 0] > 0]
            mask = torch.arange(8) % 2 == 0  # the refused call leaves nothing behind
            self.assertEqual(x[mask].shape, (4, 1024))
            self.assertEqual(x[:, torch.arange(1024) < 100].shape, (8, 100))
            self.assertEqual(x[torch.tensor([1, 5])].shape, (2, 1024))
            self.assertEqual(x.masked_select(mask[:, None]).shape, (4 * 1024,))
            labels = torch.full((8,), 3)
            labels[:3] = -100
            self.assertEqual(x[labels != -100].shape, (5, 1024))

        dtensor.simulate(2, on_rank)


if __name__ == "__main__":
    unittest.main()
