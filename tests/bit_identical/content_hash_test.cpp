// Hashes of global contents: equal on every mesh, another one for each bit.
#include "bit_identical/bits.h"
#include "train/model/optimizer.h"

namespace dtensor::test {
namespace {

TEST(ContentHash, OfBytesIsSha256) {
  const at::Tensor text = at::tensor({'a', 'b', 'c'}, at::kByte);  // The example of FIPS 180-2.
  EXPECT_EQ(BitIdentical::content_hash(text), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ContentHash, DoesNotDependOnPlacements) {
  const at::Tensor full = at::randn({7, 6});
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    for (const Placements& where : {Placements{Replicate(), Replicate()}, {Shard(0), Shard(1)}, {Shard(1), Shard(1)}}) {
      EXPECT_EQ(BitIdentical::content_hash(distribute_tensor(full, mesh, where)), BitIdentical::content_hash(full));
    }
  });
}

// One step of AdamW on two parameters, then one bit of a tensor of one rank flips.
std::string hash_with_flip(const DeviceMesh& mesh, std::int64_t element, bool of_state) {
  at::Tensor weight = distribute_tensor(at::arange(24, at::kFloat).view({4, 6}), mesh, {Shard(0)}).requires_grad_();
  at::Tensor bias = distribute_tensor(at::ones({6}), mesh, {Replicate()}).requires_grad_();
  train::Optimizer optimizer({{"weight", &weight}, {"bias", &bias}}, {});
  (weight * bias).sum().backward();
  optimizer.step();
  const at::Tensor part = DTensor(of_state ? optimizer.state(weight).front().second : weight.detach()).to_local();
  if (element >= 0 && mesh.communicator().rank() == 1) {
    static_cast<std::uint32_t*>(part.mutable_data_ptr())[element] ^= 1;
  }
  return optimizer.content_hash(mesh.communicator());
}

TEST(ContentHash, OfParametersAndStatesChangesWithEachBit) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const std::string expected = hash_with_flip(mesh, -1, false);
    EXPECT_EQ(hash_with_flip(mesh, -1, false), expected);
    for (const bool of_state : {false, true}) {
      for (const std::int64_t element : {0, 11}) EXPECT_NE(hash_with_flip(mesh, element, of_state), expected);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
