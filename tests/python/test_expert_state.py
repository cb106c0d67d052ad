"""Copies, saved states and frozen parameters of mixtures of experts."""

import copy
import io
import pickle
import unittest

import torch
from torch import nn

import dtensor
from dtensor import moe
from test_experts import TOKENS, layer


class State(unittest.TestCase):
    """Copies and saved states include the state of a layer besides its parameters, also under expert parallelism."""

    def balanced(self):
        made = layer(balance_rate=0.5)
        for _ in range(3):
            made(TOKENS)
            moe.update_load_balancers(made, dtensor.world())
        return made

    def test_the_balance_bias_is_saved_and_copied(self):
        made = self.balanced()
        made(TOKENS)
        self.assertNotEqual(made.load.tolist(), self.first_load())
        fresh = layer(balance_rate=0.5)
        fresh.load_state_dict(made.state_dict())
        for twin in [fresh, copy.deepcopy(made)]:
            twin(TOKENS)
            self.assertEqual(twin.load.tolist(), made.load.tolist())
            moe.update_load_balancers(twin, dtensor.world())  # does not change the bias of `made`
            self.assertNotEqual(twin.balance.tolist(), made.balance.tolist())

    def first_load(self):
        fresh = layer(balance_rate=0.5)
        fresh(TOKENS)
        return fresh.load.tolist()

    def test_a_copy_keeps_the_dispatch(self):
        made = layer()
        made.set_dispatch("capacity", factor=0.5)
        for one in [made, copy.deepcopy(made)]:
            one(TOKENS)
            self.assertGreater(one.dropped, 0)

    def test_a_copy_keeps_expert_parallelism(self):
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

    def test_frozen_parameters_stay_frozen(self):
        prototype = layer()
        prototype.gate.weight.requires_grad_(False)
        prototype.experts.w1.requires_grad_(False)

        def on_rank():
            spread = copy.deepcopy(prototype)
            dtensor.apply_expert_parallel(spread, dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",)))
            return [name for name, p in spread.named_parameters() if not p.requires_grad]

        self.assertEqual(dtensor.run(2, on_rank), [["gate.weight", "experts.w1"]] * 2)

    def test_pickles_are_copies(self):
        """torch.save(model), and pickles as spawned workers and copy.copy use them."""
        experts = [nn.Linear(8, 8).double() for _ in range(4)]
        chosen = torch.arange(12).remainder(4)[:, None], torch.ones(12, 1).double()
        balanced = self.balanced()
        balanced.set_dispatch("capacity", factor=0.5)

        def saved(module):
            file = io.BytesIO()
            torch.save(module, file)
            file.seek(0)
            return torch.load(file, weights_only=False)

        def check(module, more, tokens):
            y = module(tokens, *more)
            for copied in [lambda m: pickle.loads(pickle.dumps(m)), saved, copy.deepcopy]:
                torch.testing.assert_close(copied(module)(tokens, *more), y)

        def on_rank(prototype, more):
            mesh, module = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",)), copy.deepcopy(prototype)
            own = [t.chunk(2)[dtensor.rank()] for t in (TOKENS, *more)]
            dtensor.apply_expert_parallel(module, mesh)
            check(module, own[1:], own[0])

        for prototype, more in [(balanced, ()), (moe.RoutedExperts(experts), chosen)]:
            check(prototype, more, TOKENS)
            dtensor.run(2, on_rank, prototype, more)

    def test_a_copy_uses_no_random_numbers(self):
        drawn = []
        for copies in (0, 1):
            made = layer()
            torch.manual_seed(0)
            for _ in range(copies):
                copy.deepcopy(made)
            drawn.append(torch.rand(3))
        self.assertTrue(torch.equal(*drawn))


class Derived(unittest.TestCase):
    """Classes that derive from the library's layers: with buffers, a custom router, other modules."""

    class Counting(moe.MixtureOfExperts):
        def __init__(self):
            super().__init__(8, 16, experts=4, dtype=torch.float64, balance_rate=0.5)
            self.register_buffer("seen", torch.zeros(4))
            self.norm = nn.LayerNorm(8).double()

        def forward(self, x):
            y = super().forward(self.norm(x))
            self.seen += self.load
            return y

    class Routing(moe.RoutedExperts):
        def __init__(self):
            super().__init__([nn.Linear(8, 8).double() for _ in range(4)])
            self.router = nn.Linear(8, 4).double()

        def forward(self, x):
            weights, ids = self.router(x).softmax(-1).topk(2, -1)
            return super().forward(x, ids, weights)

    def test_expert_parallelism_and_copies(self):
        for kind in (self.Counting, self.Routing):
            reference = kind()
            expected = reference(TOKENS)

            def on_rank():
                module = copy.deepcopy(reference)
                dtensor.apply_expert_parallel(module, dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",)))
                own = TOKENS.chunk(2)[dtensor.rank()]
                return module(own), copy.deepcopy(module)(own)

            for found in zip(*dtensor.run(2, on_rank)):
                torch.testing.assert_close(torch.cat(found), expected)

    def test_tied_experts_cannot_be_parallelized(self):
        one, other = nn.Linear(8, 8).double(), nn.Linear(8, 8).double()
        other.weight = one.weight
        ids, weights = torch.arange(12).remainder(2)[:, None], torch.ones(12, 1).double()
        for experts in ([one, one], [one, other]):
            routed = moe.RoutedExperts(experts)
            expected = torch.stack([expert(TOKENS) for expert in experts], 1)
            torch.testing.assert_close(routed(TOKENS, ids, weights), expected.gather(1, ids[..., None].expand(-1, -1, 8))[:, 0])
            with self.assertRaisesRegex(ValueError, "'weight' of expert 1 is tied to a parameter of expert 0"):
                dtensor.apply_expert_parallel(routed, dtensor.init_device_mesh("cpu", (1,), mesh_dim_names=("ep",)))


if __name__ == "__main__":
    unittest.main()
