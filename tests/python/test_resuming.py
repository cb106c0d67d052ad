"""Runs that are resumed by programs whose optimizers have not taken a step: stateful objects in checkpoints."""

import copy
import tempfile
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Shard, checkpoint
from dtensor.fsdp import fully_shard

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2), nn.Linear(2, 3)).double()
NET[3].requires_grad_(False)
ROWS = torch.randn(4, 4).double()
KINDS = {
    "torch.AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.1),
    "torch.SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "torch.NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.1),
    "torch.Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.1),
    "AdamW": lambda m: dtensor.optim.AdamW(m.named_parameters(), lr=0.1),
    "SGD": lambda m: dtensor.optim.SGD([{"params": [p]} for p in m.parameters()], lr=0.1, momentum=0.9),
    "Shampoo": lambda m: dtensor.optim.Shampoo(m.parameters(), lr=0.1, start=2, frequency=2, block_size=4),
}


class Run:
    def __init__(self, make, ranks):
        self.model = copy.deepcopy(NET)
        self.mesh = dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
        fully_shard(self.model, mesh=self.mesh)
        self.optimizer = make(self.model)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.2, total_steps=9, cycle_momentum=False)

    def steps(self, count):
        rows = dtensor.distribute_tensor(ROWS, self.mesh, [Shard(0)])
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(rows).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()

    def state(self, step=0):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "step": step}

    def weights(self):
        return [p.detach().full_tensor() for p in self.model.parameters()]


class Resuming(unittest.TestCase):
    def check(self, make, folder):
        def first():
            run = Run(make, 2)
            run.steps(3)
            dtensor.save(run.state(3), folder + "/state")
            checkpoint.CheckpointSeries(folder + "/series").save(run.state(3), 3)
            run.steps(3)
            return run.weights()

        def second(ranks, load):
            run = Run(make, ranks)
            state = run.state()
            load(state)
            self.assertEqual((state["step"], state["optimizer"]), (3, run.optimizer))
            run.steps(3)
            return run.weights()

        expected = dtensor.run(2, first)[0]
        for ranks in (1, 2):
            for load in [
                lambda state: dtensor.load(state, folder + "/state"),
                lambda state: checkpoint.load_newest(state, folder + "/series"),
                lambda state: checkpoint.CheckpointSeries(folder + "/series").load_newest(state),
            ]:
                for found in dtensor.run(ranks, second, ranks, load):
                    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)

    def test_each_optimizer_resumes(self):
        for name, make in KINDS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.check(make, folder)

    def test_a_missing_checkpoint_changes_nothing(self):
        def on_rank(folder):
            run = Run(KINDS["AdamW"], 2)
            state = run.state(7)
            self.assertEqual(checkpoint.load_newest(state, folder).path, "")
            self.assertEqual(state["step"], 7)
            with self.assertRaises((ValueError, RuntimeError)):
                dtensor.load(state, folder + "/none")

        with tempfile.TemporaryDirectory() as folder:
            dtensor.run(2, on_rank, folder)

    def test_states_with_learning_rates_only(self):
        """The format of checkpoints without options."""

        def on_rank(folder):
            run = Run(KINDS["AdamW"], 2)
            run.steps(2)
            state = run.optimizer.state_dict()
            del state["param_groups"]
            dtensor.save({"optimizer": state}, folder)
            twin = KINDS["AdamW"](run.model)
            dtensor.load({"optimizer": twin}, folder)
            self.assertEqual(twin.param_groups[0]["lr"], run.optimizer.param_groups[0]["lr"])
            self.assertEqual(sorted(twin.state_dict()["tensors"]), sorted(state["tensors"]))

        with tempfile.TemporaryDirectory() as folder:
            dtensor.run(2, on_rank, folder + "/state")


class BroadcastState(unittest.TestCase):
    """``broadcast_state``: the full tensors of one rank become shards on all ranks."""

    def test_every_rank_receives_its_shards(self):
        full = NET.state_dict()

        def on_rank():
            model = copy.deepcopy(NET)
            for parameter in model.parameters():
                parameter.detach().zero_()
            mesh = dtensor.init_device_mesh("cpu", (3,), mesh_dim_names=("dp",))
            fully_shard(model, mesh=mesh)
            checkpoint.broadcast_state(full if dtensor.rank() == 2 else {}, model, source=2)
            return {name: value.full_tensor() for name, value in model.state_dict().items()}

        for found in dtensor.run(3, on_rank):
            self.assertEqual(list(found), list(full))
            for name, value in full.items():
                self.assertTrue(torch.equal(found[name], value), name)

    def test_a_missing_name_is_an_error_on_every_rank(self):
        def on_rank():
            model = copy.deepcopy(NET)
            fully_shard(model, mesh=dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
            full = {name: value for name, value in NET.state_dict().items() if name != "0.bias"}
            try:
                checkpoint.broadcast_state(full if dtensor.rank() == 0 else {}, model)
            except ValueError as error:
                return str(error)

        for text in dtensor.run(2, on_rank):
            self.assertIn("0.bias", text)


if __name__ == "__main__":
    unittest.main()
