// Targets whose memory does not determine their values, and tied tensors that ranks request under different names.
#include <ATen/ops/quantize_per_tensor.h>
#include <gtest/gtest.h>

#include "checkpoint/folder.h"

namespace dtensor::test {
namespace {

at::Tensor quantized(double scale) { return at::quantize_per_tensor(at::ones({4}), scale, 0, at::kQInt8); }

// Broadcasts on two ranks, one of which has another target.
std::vector<std::string> broadcast_errors(const at::Tensor& full, const at::Tensor& target, const at::Tensor& other) {
  return errors_on(2, [&](const Communicator& world) {
    broadcast_state({{"w", full}}, world, {{"w", world.rank() == 0 ? target : other}});
  });
}

TEST(Broadcast, TensorsWithoutDenseValuesAreRefused) {
  const at::Tensor ones = at::ones({4}), meta = at::empty({4}, at::kMeta);
  expect_error(broadcast_errors(ones, meta, meta), {"'w' is on the meta device"});
  expect_error(broadcast_errors(ones, at::zeros({4}), meta), {"rank 1", "'w' is on the meta device"});
  expect_error(broadcast_errors(ones, at::zeros({4}), at::Tensor()), {"'w' is undefined"});
  expect_error(broadcast_errors(ones, at::zeros({4}), at::zeros({4}).to_sparse()),
               {"'w': expected a strided tensor, got Sparse"});
  // A quantized tensor of 8 bits has a scale; the bits alone would be sent.
  expect_error(broadcast_errors(quantized(0.5), quantized(0.25), quantized(0.25)), {"'w' is QInt8", "int_repr"});
  expect_error(broadcast_errors(ones, quantized(0.25), quantized(0.25)), {"'w' is QInt8", "int_repr"});
}

TEST(Tied, RanksMayRequestDifferentNames) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor unsharded = at::arange(6), other = at::arange(6) + 1;
    save_state(folder / "tied", mesh.world(), {{"a", unsharded}, {"b", unsharded}}, {}, kQuick);
    save_state(folder / "apart", mesh.world(), {{"a", unsharded}, {"b", other}}, {}, kQuick);
    for (const bool regular : {true, false}) {
      at::Tensor target = at::zeros({6}, at::kLong);
      if (!regular) target = distribute_tensor(target, mesh, {Shard(0)});
      StateTensors targets{{"a", target}};
      if (mesh.world().rank() == 0) targets.emplace_back("b", target);
      load_state(folder / "tied", mesh.world(), targets);
      EXPECT_TRUE(at::equal(regular ? target : DTensor(target).full_tensor(), unsharded));
      EXPECT_THROW(load_state(folder / "apart", mesh.world(), targets), c10::Error);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
