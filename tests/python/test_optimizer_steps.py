"""Steps of the library's optimizers on sharded models equal those of torch on one device."""

import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Shard
from dtensor.fsdp import fully_shard
from residual_net import IDS, NET, TARGETS, loss_of, reference


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
        for fused in (False, True):
            self.compare(lambda ps: ours.AdamW(ps, lr=0.01, betas=(0.9, 0.5), amsgrad=True, fused=fused),
                         lambda ps: torchs.AdamW(ps, lr=0.01, betas=(0.9, 0.5), amsgrad=True))  # fmt: skip
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


if __name__ == "__main__":
    unittest.main()
