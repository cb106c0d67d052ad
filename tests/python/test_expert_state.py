"""Copies, saved states and frozen parameters of mixtures of experts."""

import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor import moe
from test_experts import TOKENS, layer


class State(unittest.TestCase):
    """What a layer is beside its parameters stays with it where it is copied, saved and spread."""

    def balanced(self):
        made = layer(balance_rate=0.5)
        for _ in range(3):
            made(TOKENS)
            moe.update_load_balancers(made, dtensor.world())
        return made

    def test_the_bias_is_saved_and_copied(self):
        made = self.balanced()
        made(TOKENS)
        self.assertNotEqual(made.load.tolist(), self.first_load())
        fresh = layer(balance_rate=0.5)
        fresh.load_state_dict(made.state_dict())
        for twin in [fresh, copy.deepcopy(made)]:
            twin(TOKENS)
            self.assertEqual(twin.load.tolist(), made.load.tolist())
            moe.update_load_balancers(twin, dtensor.world())  # its own: that of the first stays
            self.assertNotEqual(twin.balance.tolist(), made.balance.tolist())

    def first_load(self):
        fresh = layer(balance_rate=0.5)
        fresh(TOKENS)
        return fresh.load.tolist()

    def test_a_copy_dispatches_alike(self):
        made = layer()
        made.set_dispatch("capacity", factor=0.5)
        for one in [made, copy.deepcopy(made)]:
            one(TOKENS)
            self.assertGreater(one.dropped, 0)

    def test_a_copy_of_experts_that_are_spread_is_spread(self):
        experts = [nn.Linear(8, 8).double() for _ in range(4)]
        chosen = torch.arange(12).remainder(4)[:, None], torch.ones(12, 1).double()
        for prototype, more in [(layer(), ()), (moe.RoutedExperts(experts), chosen)]:

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
                spread, counts, results = copy.deepcopy(prototype), [], []
                dtensor.apply_expert_parallel(spread, mesh)
                for one in [spread, copy.deepcopy(spread)]:
                    with dtensor.CommDebugMode() as comm:
                        results.append(one(*(t.chunk(2)[dtensor.rank()] for t in (TOKENS, *more))))
                    counts.append(comm.get_comm_counts())
                self.assertEqual(*counts)
                torch.testing.assert_close(*results)

            dtensor.run(2, on_rank)

    def test_what_is_frozen_stays_so(self):
        prototype = layer()
        prototype.gate.weight.requires_grad_(False)
        prototype.experts.w1.requires_grad_(False)

        def on_rank():
            spread = copy.deepcopy(prototype)
            dtensor.apply_expert_parallel(spread, dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",)))
            return [name for name, p in spread.named_parameters() if not p.requires_grad]

        self.assertEqual(dtensor.run(2, on_rank), [["gate.weight", "experts.w1"]] * 2)


if __name__ == "__main__":
    unittest.main()
