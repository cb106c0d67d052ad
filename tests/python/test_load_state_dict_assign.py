"""load_state_dict(assign=True) on units of fully_shard, as programs load models that were created on the meta device."""

import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor.fsdp import MixedPrecisionPolicy, fully_shard

torch.manual_seed(0)
REGULAR = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
ROWS = torch.randn(4, 4)


class Assigned(unittest.TestCase):
    def check(self, values, policy, tolerance):
        reference = copy.deepcopy(REGULAR)
        reference(ROWS).square().mean().backward()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            with torch.device("meta"):
                module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            for part in (module[0], module):
                fully_shard(part, mesh=mesh, mp_policy=policy)
            former = list(module.parameters())
            module.load_state_dict({key: values(t, mesh) for key, t in REGULAR.state_dict().items()}, assign=True)
            self.assertTrue(all(a is b for a, b in zip(module.parameters(), former)))  # optimizers may refer to them
            before = module.fsdp_stats()["all_gathers"]
            y = module(ROWS.chunk(2)[dtensor.rank()])
            self.assertEqual(module.fsdp_stats()["all_gathers"], before + 2)
            self.assertEqual(y.dtype, policy.param_dtype or torch.float32)
            y.float().square().mean().backward()
            for p, q in zip(module.parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=tolerance, atol=tolerance)
                torch.testing.assert_close(p.detach().full_tensor(), q.detach())

        dtensor.run(2, on_rank)

    def test_units_take_the_values(self):
        kinds = [lambda t, mesh: t.clone()]  # regular tensors, and DTensors
        for placement in (Shard(0), Replicate()):
            kinds.append(lambda t, mesh, placement=placement: dtensor.distribute_tensor(t, mesh, [placement]))
        for values in kinds:
            self.check(values, MixedPrecisionPolicy(), 1e-6)
            self.check(values, MixedPrecisionPolicy(param_dtype=torch.bfloat16), 0.05)

    def test_other_dtypes_and_meta_tensors_replace_the_parameters(self):
        """As in torch; the parameters then no longer belong to the unit."""

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = fully_shard(copy.deepcopy(REGULAR), mesh=mesh)
            doubles = copy.deepcopy(REGULAR).double()
            module.load_state_dict(doubles.state_dict(), assign=True)
            torch.testing.assert_close(module(ROWS.double()), doubles(ROWS.double()))
            module = fully_shard(copy.deepcopy(REGULAR), mesh=mesh)
            module.load_state_dict({key: t.to("meta") for key, t in REGULAR.state_dict().items()}, assign=True)
            self.assertTrue(all(p.is_meta for p in module.parameters()))

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
