"""A dozen families of the transformers package; families.py --all by hand runs every one."""

import copy
import unittest
import warnings

try:
    import families
    import transformers
except ImportError:
    transformers = None

import dtensor
from dtensor import Shard


@unittest.skipIf(transformers is None, "transformers is not installed")
class Families(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()

    def test_equal_one_device(self):
        for family in families.CI:
            with self.subTest(family):
                failures, cases = families.compare(family, ["dp", "fsdp", "last", "mixed"], [(2,), (2, 2)])
                self.assertEqual((failures, cases), ([], 8))

    def test_a_difference_is_seen(self):
        model, kind = families.make("llama")
        with families.single_is_double():
            expected = families.Result(copy.deepcopy(model), kind, families.batch(), False)
        model.model.norm.weight.data.mul_(1.0001)
        with families.single_is_double():
            other = families.Result(copy.deepcopy(model), kind, families.batch(), False)
        self.assertIn("logits", expected.differences(other))

    def test_fully_shard_takes_a_model(self):
        model, kind = families.make("llama")
        with families.single_is_double():
            expected = families.Result(copy.deepcopy(model), kind, families.batch(), True)

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
                sharded = copy.deepcopy(model)
                for layer in sharded.model.layers:
                    dtensor.fully_shard(layer, mesh=mesh)
                dtensor.fully_shard(sharded, mesh=mesh)
                ids = dtensor.distribute_tensor(families.batch(), mesh, [Shard(0)])
                return expected.differences(families.Result(sharded, kind, ids, True))

            self.assertEqual(dtensor.run(2, on_rank), [[], []])


if __name__ == "__main__":
    unittest.main()
