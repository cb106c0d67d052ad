"""Pipelines: parameters of stages that are unknown or replaced, checks of results, lifetimes."""

import copy
import gc
import unittest
import weakref

import torch
from torch import nn

import dtensor
from dtensor import pipeline

torch.manual_seed(0)
LAYERS = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)]).double()
ROWS = torch.randn(6, 6).double(), torch.randn(6, 6).double()


class Parameters(unittest.TestCase):
    def norm(self, layers):
        one = copy.deepcopy(layers)
        nn.functional.mse_loss(one[1](one[0](ROWS[0])), ROWS[1]).backward()
        return nn.utils.get_total_norm([p.grad for p in one.parameters()]).item()

    def run_step(self, line):
        first, last = 0 in line.stages, line.last_stage in line.stages
        line.step(pipeline.microbatches(ROWS[0], 2) if first else [], pipeline.microbatches(ROWS[1], 2) if last else [])

    def line(self):
        mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
        schedule = pipeline.with_communication(pipeline.make_schedule("1f1b", 2, 2), unsharded_stages=None, reduce_grad=False)
        return pipeline.Pipeline(mesh, schedule, nn.functional.mse_loss)

    def test_parameters_of_functions_are_unknown(self):
        def on_rank(with_parameters):
            line, layers = self.line(), copy.deepcopy(LAYERS)
            for stage in line.stages:
                given = list(layers[stage].parameters()) if with_parameters or stage == 1 else None
                line.set_stage(stage, lambda x, layer=layers[stage]: layer(x), given)
            self.run_step(line)
            if with_parameters:
                return line.clip_grad_norm_(1e9).item()
            with self.assertRaisesRegex(RuntimeError, "parameters of stage 0; pass them to set_stage"):
                line.clip_grad_norm_(1e9)

        for norm in dtensor.run(2, on_rank, True):
            self.assertAlmostEqual(norm, self.norm(LAYERS), places=12)
        dtensor.run(2, on_rank, False)

    def test_parameters_of_modules_are_read_at_each_step(self):
        changed = copy.deepcopy(LAYERS)
        with torch.no_grad():
            changed[0].weight.mul_(3)

        def on_rank():
            line, layers = self.line(), copy.deepcopy(LAYERS)
            for stage in line.stages:
                line.set_stage(stage, layers[stage])
            layers[0].weight = nn.Parameter(layers[0].weight.detach() * 3)
            self.run_step(line)
            norm = line.clip_grad_norm_(1e-3).item()
            return norm, [p.grad.norm().item() ** 2 for stage in line.stages for p in layers[stage].parameters()]

        results = dtensor.run(2, on_rank)
        for norm, _ in results:
            self.assertAlmostEqual(norm, self.norm(changed), places=12)
        self.assertAlmostEqual(sum(sum(squares) for _, squares in results) ** 0.5, 1e-3, places=6)


class Results(unittest.TestCase):
    """A result of a stage, a loss or a microbatch that is not a tensor is a descriptive error on every rank."""

    def step(self, forward, loss=nn.functional.mse_loss, batch=ROWS[0]):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
            schedule = pipeline.make_schedule("1f1b", 2, 2)
            line = pipeline.Pipeline(mesh, schedule, loss)
            for stage in line.stages:
                line.set_stage(stage, forward if stage == 0 else (lambda x: x * 1), [])
            first, last = 0 in line.stages, line.last_stage in line.stages
            with self.assertRaises((TypeError, dtensor.PeerError)) as raised:
                line.step([batch[:3], batch[3:]] if first else [], [ROWS[1][:3], ROWS[1][3:]] if last else [])
            return str(raised.exception)

        return dtensor.run(2, on_rank)

    def test_results_of_a_stage(self):
        for result, kind in [(None, "NoneType"), ({"x": ROWS[0]}, "dict"), (3.0, "float"), ([ROWS[0], None], "list of Tensor, NoneType")]:
            for text in self.step(lambda x, result=result: result):
                self.assertIn(f"what stage 0 returns must be a tensor or a list or tuple of tensors, got {kind}", text)
            self.assertEqual("pass the tensors in it" in text, kind == "dict")

    def test_results_of_a_loss(self):
        for text in self.step(lambda x: x * 1, loss=lambda outputs, targets: None):
            self.assertIn("the loss of a pipeline must be a tensor of one element, got NoneType", text)


class Schedules(unittest.TestCase):
    def test_are_values(self):
        schedule, same = (pipeline.make_schedule("1f1b", 2, 4) for _ in range(2))
        self.assertEqual({schedule, same}, {schedule})
        for other in (None, "1f1b", pipeline.make_schedule("gpipe", 2, 4)):
            self.assertNotEqual(schedule, other)


class Trainer:
    """Owns a pipeline that calls its methods."""

    def __init__(self):
        mesh = dtensor.init_device_mesh("cpu", (1,), mesh_dim_names=("pp",))
        self.line = pipeline.Pipeline(mesh, pipeline.make_schedule("gpipe", 1, 2), self.loss, weight=self.rows)
        self.layers = copy.deepcopy(LAYERS)
        self.line.set_stage(0, self.forward)

    def forward(self, x):
        return self.layers[1](self.layers[0](x))

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs, targets)

    def rows(self, targets):
        return len(targets)


class Functions(unittest.TestCase):
    def test_functions_do_not_keep_their_owner_alive(self):
        trainer = Trainer()
        trainer.line.step(pipeline.microbatches(ROWS[0], 2), pipeline.microbatches(ROWS[1], 2))
        self.assertGreater(trainer.layers[0].weight.grad.norm(), 0)
        gone = weakref.ref(trainer)
        del trainer
        gc.collect()
        self.assertIsNone(gone())

    def test_a_refused_function_keeps_the_former_stage(self):
        """A schedule that gathers needs the parameters; those of the former module are still read at each step."""
        mesh = dtensor.init_device_mesh("cpu", (1,), mesh_dim_names=("pp",))
        line = pipeline.Pipeline(mesh, pipeline.with_communication(pipeline.make_schedule("gpipe", 1, 2)), nn.functional.mse_loss)
        module = nn.Sequential(*copy.deepcopy(LAYERS))
        line.set_stage(0, module)
        with self.assertRaisesRegex(RuntimeError, "given no parameters of stage 0"):
            line.set_stage(0, lambda x: x)
        module[0].weight = nn.Parameter(module[0].weight.detach() * 3)
        line.step(pipeline.microbatches(ROWS[0], 2), pipeline.microbatches(ROWS[1], 2))
        own = nn.utils.get_total_norm([p.grad for p in module.parameters()])
        self.assertAlmostEqual(line.clip_grad_norm_(1e9).item(), own.item(), places=12)


if __name__ == "__main__":
    unittest.main()
