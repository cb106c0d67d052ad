// Global strides are equal on every rank, whatever the strides of local tensors. Lists are packed in their order, and
// they determine whether a view is possible.
#include "dtensor/inspect.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

void expect_one_order(const DeviceMesh& mesh, const DTensor& x, const std::string& what) {
  const auto mine = at::tensor(x.strides(), at::kLong);
  const auto all = at::empty({mesh.size(), x.dim()}, at::kLong);
  mesh.communicator().all_gather(all.unbind(0), mine).wait();
  EXPECT_TRUE(all.eq(all[0]).all().item<bool>()) << what << "\n" << all;
}

at::Tensor column_major(const at::Tensor& t) { return t.t().contiguous().t(); }

bool odd(const DeviceMesh& mesh) { return mesh.world().rank() % 2 == 1; }

TEST(Strides, OfRegularTensorsWithDifferentStridesPerRank) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full = at::arange(6, at::kDouble).view({2, 3});
    const auto given = odd(mesh) ? column_major(full) : full;
    for (const Placement& p : {Replicate(), Shard(1), Partial()}) {
      const auto x = distribute_tensor(given, mesh, {p});
      expect_one_order(mesh, x, x.spec_str());
      expect_close(x.view({6}), full.view({6}), x.spec_str());
    }
  });
}

TEST(Strides, OfPartialsWithDifferentStridesPerRank) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto share = at::arange(9, at::kDouble).view({3, 3});
    const auto x = DTensor::from_local(odd(mesh) ? column_major(share) : share, mesh, {Partial()});
    expect_one_order(mesh, x, "from_local");
    for (const auto& sum : redistribute({x, x}, {{Replicate()}, {Replicate()}})) {
      EXPECT_TRUE(at::equal(sum.to_local(), 2 * share)) << sum.to_local();
    }
  });
}

// A shard with at most one row is both row-major and column-major.
TEST(Strides, OfShardsThatAreTooSmallToHaveAnOrder) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    for (const std::int64_t rows : {1, 5, 8}) {
      const auto full = column_major(at::arange(3 * rows, at::kDouble).view({rows, 3}));
      const auto mine = DTensor(distribute_tensor(full, mesh, {Shard(0)})).to_local();
      const auto local = column_major(mine);
      for (const auto& x :
           {DTensor::from_local(local, mesh, {Shard(0)}), DTensor::from_local(local, mesh, {Shard(0)}, full.sizes())}) {
        expect_one_order(mesh, x, c10::str(rows, " rows"));
        expect_close(x.reshape({3 * rows}), full.reshape({3 * rows}), c10::str(rows, " rows"));
      }
    }
  });
}

// The stride of a dimension of size 1 is arbitrary and may differ between ranks.
TEST(Strides, OfShardsWithADimensionOfSizeOne) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto values = at::arange(6, at::kDouble).view({2, 1, 3});
    const auto apart = at::zeros({1, 2, 5}, at::kDouble).narrow(2, 0, 3).transpose(0, 1).copy_(values);
    const auto local = odd(mesh) ? apart : values;
    const auto x = DTensor::from_local(local, mesh, {Shard(0)}, {4, 1, 3});
    expect_one_order(mesh, x, "row-major");
    const auto images = DTensor::from_local(local.permute({1, 0, 2}), mesh, {Shard(1)}, {1, 4, 3});
    expect_one_order(mesh, images, "one image");
    expect_close(x.view({12}), at::cat({values, values}).view({12}), "values");
  });
}

TEST(Strides, OfGradientsOfSmallShards) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    const auto full = at::arange(15, at::kDouble).view({5, 3}), weight = at::arange(15, at::kDouble).view({3, 5});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
    const auto y = x * 1;
    y.register_hook([&](const at::Tensor& gradient) { expect_one_order(mesh, DTensor(gradient), "gradient"); });
    const auto part = DTensor::from_local(weight, mesh, {Replicate()}).redistribute({Shard(1)}).to_local();
    (DTensor(y).to_local().t() * part).sum().backward();
    expect_close(x.grad(), weight.t(), "gradient");
  });
}

// Ranks may compute differently on local tensors, so gradients may arrive in different memory orders.
TEST(Strides, OfGradientsOfLocalComputation) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const Checked calls(Checks::calls);
    const auto rows = at::arange(24, at::kDouble).view({4, 6});
    for (const auto& full : {rows, column_major(rows)}) {
      const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
      const auto y = x * x;
      y.register_hook([&](const at::Tensor& gradient) { expect_one_order(mesh, DTensor(gradient), "gradient"); });
      const auto part = DTensor(y).to_local();
      const auto turned = part.t().clone(at::MemoryFormat::Contiguous), part_of_rows = part.contiguous();
      (odd(mesh) ? turned.mul(at::ones({6, 2}, at::kDouble)) : part_of_rows.mul(at::ones({2, 6}, at::kDouble)))
          .sum()
          .backward();
      expect_close(x.grad(), 2 * full, "gradient");
    }
  });
}

}  // namespace
}  // namespace dtensor::test
