"""Layouts that a search over dry runs chooses, for models written without this library: they run and equal one device.

Models of the transformers package take part where it is installed.
"""

import contextlib
import copy
import dataclasses
import json
import unittest

import torch
from torch import nn

import dtensor
from dtensor.debug import CommDebugMode
from dtensor.fsdp import fully_shard
from residual_net import Net

try:
    import tiny_models
    import transformers
except ImportError:
    transformers = None

RANKS, ROWS, WIDTH, STEPS = 8, 16, 32, 2
KERNEL_BYTES = 1 << 17  # temporaries inside of convolutions at these sizes, which a dry run does not see
FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "phi3", "opt", "bloom", "gpt_neox", "olmo2", "bert"]


def table(*levels):
    rates = {kind: [[1, 1e10]] for kind in ("product", "attention", "norm", "elementwise")}
    names = ("name", "ranks", "latency", "bandwidth")
    levels = [dict(zip(names, level)) for level in levels]
    return dtensor.HardwareModel.parse(json.dumps({"name": "test", "rates": rates, "levels": levels}))


# One node of 8 ranks, and two of 4 with slow links between them.
HARDWARE = [table(("node", 8, 1e-6, 1e9)), table(("node", 4, 1e-6, 1e9), ("rack", 8, 1e-5, 1e7))]
# Sizes of the axes that replicate and shard, and whether parameters are freed after forward.
LAYOUTS = [(shape, reshard) for shape in [(1, 8), (2, 4), (4, 2), (8, 1)] for reshard in (True, False)]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 2 * WIDTH, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def encoder(norm_first):
    return nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0, batch_first=True, norm_first=norm_first)


def images(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, WIDTH)), (ROWS, 3, 12, 12)


def convolution(inputs, outputs, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def models():
    """(name, model, sizes of its input); integers below 6 if the sizes are None."""
    sequence = (ROWS, 6, WIDTH)
    torch.manual_seed(3)
    yield "perceptron", nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)), (ROWS, WIDTH)
    yield "deep perceptron", nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))), (ROWS, WIDTH)
    yield "gated", nn.Sequential(*(Gated() for _ in range(3))), sequence
    yield "encoder, norms first", nn.Sequential(encoder(True), encoder(True)), sequence
    yield "encoder, norms last", nn.Sequential(encoder(False), encoder(False)), sequence
    yield "recurrent", Recurrent(), sequence
    yield "tied embedding", Net(WIDTH), None
    yield "convolutions", *images(convolution(3, 16), nn.ReLU(), nn.MaxPool2d(2), convolution(16, WIDTH), nn.GroupNorm(4, WIDTH))
    yield "depthwise", *images(convolution(3, WIDTH), nn.SiLU(), convolution(WIDTH, WIDTH, groups=WIDTH), nn.Conv2d(WIDTH, WIDTH, 1))
    yield "strided", *images(nn.Conv2d(3, WIDTH, 4, stride=4), nn.GELU(), convolution(WIDTH, WIDTH, stride=2))


def any_input(sizes):
    generator = torch.Generator().manual_seed(5)
    if sizes is None:
        return torch.randint(0, 6, (ROWS, 5), generator=generator)
    return torch.randn(sizes, generator=generator, dtype=torch.float64)


def outputs_of(model, x):
    out = model(x)
    return out if isinstance(out, torch.Tensor) else out[0]


def train(model, x, begin_step=dtensor.begin_step):
    """The losses of a few steps."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(STEPS):
        loss = outputs_of(model, x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if len(losses) == 1:
            begin_step()
    return torch.stack(losses)


def place(model, layout):
    shape, reshard = layout
    placed = copy.deepcopy(model)
    mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    if isinstance(placed, nn.Sequential):
        for child in placed:
            fully_shard(child, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(placed, mesh=mesh, reshard_after_forward=reshard)
    return placed


def rows(x):
    return x.chunk(RANKS)[dtensor.rank()]


def simulated(model, x, layout):
    train(place(model, layout), rows(x))


@dataclasses.dataclass
class Measured:
    losses: torch.Tensor
    parameters: dict
    peak: int  # of the second step, as the collectives
    collectives: dict


def measured(model, x, layout):
    """A real run of `simulated`."""
    with dtensor.MemoryTimeline() as memory, contextlib.ExitStack() as second_step:
        comm = CommDebugMode()

        def begin_step():
            memory.reset_peak()
            second_step.enter_context(comm)

        placed = place(model, layout)
        losses = train(placed, rows(x), begin_step)
    parameters = {name: p.detach().full_tensor() for name, p in placed.named_parameters()}
    collectives = {}
    for kind, axis, _, _, calls, count in comm.rows():
        before = collectives.get((kind, axis), (0, 0))
        collectives[kind, axis] = before[0] + calls, before[1] + count
    return Measured(losses, parameters, memory.peak()[0], collectives)


def search(model, x, hardware):
    """The layout of the fastest step among those whose memory is at most the mean, and its report."""
    reports = {layout: dtensor.simulate(RANKS, simulated, model, x, layout, hardware=hardware) for layout in LAYOUTS}
    limit = sum(max(r.peak_bytes, r.peak_bytes_before) for r in reports.values()) // len(reports)
    fitting = [layout for layout in LAYOUTS if reports[layout].fits(limit)]
    best = min(fitting, key=lambda layout: reports[layout].estimate(hardware).seconds)
    return best, reports[best]


class Search(unittest.TestCase):
    def check(self, name, model, x):
        """The layouts chosen for each hardware."""
        chosen = [search(model, x, hardware) for hardware in HARDWARE]
        expected = copy.deepcopy(model)
        losses = train(expected, x)
        for layout, report in chosen:
            with self.subTest(name, layout=layout):
                results = dtensor.run(RANKS, measured, model, x, layout)
                torch.testing.assert_close(torch.stack([r.losses for r in results]).mean(0), losses)
                for key, parameter in expected.named_parameters():
                    torch.testing.assert_close(results[0].parameters[key], parameter.detach(), rtol=1e-6, atol=1e-8)
                self.assertEqual(report.collectives, results[0].collectives)
                self.assertLessEqual(report.peak_bytes, 1.03 * results[0].peak)
                self.assertGreaterEqual(report.peak_bytes, 0.99 * results[0].peak - KERNEL_BYTES)
        return [layout for layout, _ in chosen]

    def test_chosen_layouts_equal_one_device(self):
        chosen = set()
        for name, model, sizes in models():
            chosen.update(self.check(name, model.double(), any_input(sizes)))
        self.assertGreater(len(chosen), 1)  # it depends on the model or the hardware

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_models_of_transformers(self):
        for family in FAMILIES:
            tiny = tiny_models.make(family)
            self.check(family, tiny.model, torch.randint(2, 90, (ROWS, 6), generator=torch.Generator().manual_seed(7)))

    def test_slow_links_take_time(self):
        _, model, sizes = next(models())
        report = dtensor.simulate(RANKS, simulated, model.double(), any_input(sizes), LAYOUTS[0], hardware=HARDWARE[0])
        node, rack = (report.estimate(hardware) for hardware in HARDWARE)
        self.assertEqual(node.compute, rack.compute)
        self.assertGreater(rack.exposed, node.exposed)
        self.assertGreater(rack.communication_by_axis["shard"], 10 * node.communication_by_axis["shard"])

    def test_an_estimate_needs_hardware(self):
        report = dtensor.simulate(2, lambda: torch.ones(8).sum())
        with self.assertRaisesRegex(RuntimeError, "expected a report of simulate"):
            report.estimate(HARDWARE[0])
        report = dtensor.simulate(2, lambda: torch.ones(8192).sum(), hardware=HARDWARE[0])
        self.assertGreater(report.estimate(HARDWARE[0]).compute, 8192 * 4 / 1e10)
        self.assertRegex(report.estimate(HARDWARE[0]).shares(), "operators .*elementwise .*100%")
        self.assertIn("traceEvents", report.chrome_trace(HARDWARE[0]))
        self.assertIn("</svg>", report.memory_svg(HARDWARE[0]))


if __name__ == "__main__":
    unittest.main()
