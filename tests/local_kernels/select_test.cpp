// select along a split dimension moves one entry in forward and nothing in backward.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Compares values, gradients and writes for any placement.
RC_GTEST_PROP(Rows, EqualOneDeviceForAnyPlacement, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  Draw data(seed);
  const auto shape =
      mesh_shapes()[static_cast<std::size_t>(data.integer(0, static_cast<std::int64_t>(mesh_shapes().size()) - 1))];
  const auto ndim = data.integer(1, 3);
  const auto sizes = data.sizes(ndim, 1, 9);
  const auto dim = data.integer(-ndim, ndim - 1);
  const auto size = sizes[static_cast<std::size_t>(dim < 0 ? dim + ndim : dim)];
  const auto index = data.integer(-size, size - 1);
  const auto dtype = data.coin() ? at::kDouble : at::kBFloat16;
  const auto full = data.normal(sizes, dtype);
  const auto scale = data.normal({}, dtype);
  const auto program = [&](const at::Tensor& leaf) {
    leaf.requires_grad_();
    const auto row = leaf.select(dim, index);
    const auto moved = (leaf * 2).select(dim, index);  // select of a non-leaf
    (row.sin().sum() + (moved * moved).sum()).backward();
    at::Tensor written = leaf.detach().clone();
    written.select(dim, index).mul_(3);
    return std::vector<at::Tensor>{row.detach(), moved.detach(), leaf.grad(), written};
  };
  const auto expected = program(full.clone());
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw positions(seed);
    const auto actual = program(distribute_tensor(full.clone(), mesh, positions.placements_of(mesh, sizes)));
    for (std::size_t i = 0; i < actual.size(); ++i) {
      expect_close(actual[i], expected[i], c10::str("seed ", seed, ", tensor ", i), dtype == at::kDouble ? 1e-9 : 0.05);
    }
  });
}

TEST(Rows, ForwardMovesOneEntryAndBackwardNothing) {
  for (const int ranks : {2, 3, 4}) {
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      const std::int64_t rows = 10, columns = 6;
      at::Tensor x = distribute_tensor(at::arange(rows * columns, at::kDouble).view({rows, columns}), mesh, {Shard(0)});
      x.requires_grad_();
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto owner = i / ((rows + ranks - 1) / ranks);
        CommDebugMode comm;
        const auto row = x.select(0, i);
        const auto expected = mesh.coordinate()->front() == owner ? 0 : columns * 8;
        EXPECT_EQ(comm.total().calls, 1) << comm.table();
        EXPECT_EQ(comm.total("broadcast").bytes, expected) << comm.table();
        EXPECT_EQ(DTensor(row).placements(), Placements{Replicate()});
        EXPECT_EQ(DTensor(row).to_local().data_ptr<double>()[1], static_cast<double>(i * columns + 1));
        comm.reset();
        row.sum().backward();
        const auto grad = std::exchange(x.mutable_grad(), {});
        EXPECT_EQ(comm.total().calls, 0) << comm.table();
        EXPECT_EQ(DTensor(grad).placements(), Placements{Shard(0)});
        EXPECT_EQ(DTensor(grad).to_local().sizes(), DTensor(x).to_local().sizes());
      }
    });
  }
}

// The bits are those of the owner; the result is not a sum with zeros.
TEST(Rows, KeepTheirBits) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto full = at::tensor({-0.0, 1.0, std::numeric_limits<double>::quiet_NaN(), -0.0}, at::kDouble);
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    EXPECT_TRUE(std::signbit(x.select(0, 0).item<double>()) && std::signbit(x.select(0, 3).item<double>()));
    const at::Tensor flags = distribute_tensor(at::tensor({1, 0, 1, 0}).to(at::kBool), mesh, {Shard(0)});
    EXPECT_EQ(flags.select(0, 2).item<bool>(), true);
    EXPECT_EQ(flags.select(0, 3).item<bool>(), false);
  });
}

TEST(Rows, IndexOutOfRangeIsAnErrorOnEveryRank) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::zeros({3, 2}), mesh, {Shard(0)});
    for (const auto index : {3, -4}) {
      EXPECT_NE(error_of([&] { x.select(0, index); }).find("index"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
