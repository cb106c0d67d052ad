"""A dozen families of the transformers package; families.py --all by hand runs every one."""

import copy
import unittest
import warnings

try:
    import families
    import tiny_models
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
        tiny = tiny_models.make("llama")
        with families.single_is_double():
            expected = families.Result(copy.deepcopy(tiny), lambda t: t)
        tiny.model.model.norm.weight.data.mul_(1.0001)
        with families.single_is_double():
            other = families.Result(copy.deepcopy(tiny), lambda t: t)
        self.assertIn("logits", expected.differences(other))

    def test_ways_of_generation(self):
        for family, ways in {"llama": ["sampling", "static cache"], "t5": ["beams"]}.items():
            with self.subTest(family):
                failures, cases = families.compare_generation(family, ["dp", "mixed"], [(2,)], ways)
                self.assertEqual((failures, cases), ([], 2 * len(ways)))

    def test_samples_follow_the_seed(self):
        tiny, options = tiny_models.make("llama"), families.GENERATION["sampling"]
        first, again, other = (families.generated(tiny, (1,), "dp", options, seed) for seed in (5, 5, 6))
        self.assertEqual((first.tolist() == again.tolist(), first.tolist() == other.tolist()), (True, False))

    def test_fully_shard_takes_a_model(self):
        tiny = tiny_models.make("llama")
        with families.single_is_double():
            expected = families.Result(copy.deepcopy(tiny), lambda t: t)

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
                sharded = copy.deepcopy(tiny)
                for layer in sharded.model.model.layers:
                    dtensor.fully_shard(layer, mesh=mesh)
                dtensor.fully_shard(sharded.model, mesh=mesh)
                return expected.differences(families.Result(sharded, lambda t: dtensor.distribute_tensor(t, mesh, [Shard(0)])))

            self.assertEqual(dtensor.run(2, on_rank), [[], []])


if __name__ == "__main__":
    unittest.main()
