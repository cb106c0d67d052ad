// Materialized views whose base gets other data or is resized: they keep the data they were made of, are updated before
// they are read, and their gathers are reported.
#include <c10/core/InferenceMode.h>

#include "dtensor/inspect.h"
#include "internal/materialized_views.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

at::Tensor eight(at::ScalarType type = at::kDouble) { return at::arange(8, type).view({4, 2}); }

at::Tensor shards(const DeviceMesh& mesh, const at::Tensor& full_tensor) {
  return distribute_tensor(full_tensor, mesh, {Shard(0)});
}

at::Tensor moved_rows(const at::Tensor& x) {
  const auto rows = x.narrow(0, 1, 2);
  EXPECT_TRUE(is_materialized_view(rows));
  return rows;
}

TEST(MovedBases, ViewsKeepFormerDataAfterSetData) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool placed_otherwise : {false, true}) {
      at::Tensor x = shards(mesh, eight());
      at::Tensor rows = moved_rows(x);
      if (placed_otherwise) DTensor(x).redistribute_({Shard(1)}), (void)(rows + 0);
      for (int i = 0; i < 2; ++i) {
        x.set_data(shards(mesh, eight() + 100));
        expect_close(rows, eight().narrow(0, 1, 2), "former data");
        expect_close(rows.select(1, 0), eight().narrow(0, 1, 2).select(1, 0), "a view of a view");
      }
      EXPECT_NE(error_of([&] { rows.fill_(7); }).find("the write would be lost"), std::string::npos);
      expect_close(x, eight() + 100, "new data");
      x.mul_(2);
      expect_close(rows + 0, eight().narrow(0, 1, 2), "former data");
    }
  });
}

// After set_data() no rank has the former data, to which the view was not updated.
TEST(MovedBases, OutdatedViewIsErrorAfterSetData) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor x = shards(mesh, eight());
    const at::Tensor rows = moved_rows(x);
    x.mul_(2);
    x.set_data(shards(mesh, eight() + 100));
    EXPECT_NE(error_of([&] { (void)(rows + 0); }).find("after its base changed"), std::string::npos);
    expect_close(moved_rows(x), eight().narrow(0, 1, 2) + 100, "new view");
  });
}

TEST(MovedBases, ResizeUsesCurrentDataOfTheBase) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = shards(mesh, eight());
    const at::Tensor rows = moved_rows(x);
    x.mul_(10);
    rows.resize_({3});
    expect_close(rows, at::arange(2, 5, at::kDouble) * 10, "resized");
  });
}

TEST(MovedBases, UnscalingReachesTheBase) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = shards(mesh, eight(at::kFloat));
    const std::vector<at::Tensor> rows{moved_rows(x)};
    x.mul_(4);
    at::Tensor found = at::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_(rows, found, at::full({1}, 0.25));
    auto expected = eight(at::kFloat) * 4;
    expected.narrow(0, 1, 2).div_(4);
    expect_close(rows[0], expected.narrow(0, 1, 2), "view");
    expect_close(x, expected, "base");
    EXPECT_EQ(found.item<float>(), 0);
  });
}

// In a materialized view, and in a tensor that is written in place.
TEST(MovedBases, FoundInfOfUnscalingIsAWrite) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor base = distribute_tensor(at::zeros({4}), mesh, {Shard(0)}), view = base.narrow(0, 1, 1);
    EXPECT_TRUE(is_materialized_view(view));
    const std::vector<at::Tensor> infinite{shards(mesh, (eight(at::kFloat) + 1) / 0)};
    for (at::Tensor found : {view, at::Tensor(distribute_tensor(at::zeros({1}), mesh, {Replicate()}))}) {
      const auto before = DTensor(found).generation();
      at::_amp_foreach_non_finite_check_and_unscale_(infinite, found, at::ones({1}));
      EXPECT_GT(DTensor(found).generation(), before);
      expect_close(found, at::ones({1}), "found");
    }
    expect_close(base, at::tensor({0.f, 1.f, 0.f, 0.f}), "base");
  });
}

TEST(MovedBases, UnscalingInferenceTensorsIsAWrite) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const c10::InferenceMode mode;
    const std::vector<at::Tensor> gradients{shards(mesh, eight(at::kFloat))};
    EXPECT_TRUE(DTensor(gradients[0]).to_local().is_inference());
    const auto before = DTensor(gradients[0]).generation();
    at::Tensor found = at::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::full({1}, 0.5));
    EXPECT_GT(DTensor(gradients[0]).generation(), before);
    expect_close(gradients[0], eight(at::kFloat) / 2, "unscaled");
  });
}

TEST(MovedBases, GathersForStridedOperatorsAreReportedOrRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = shards(mesh, at::arange(16, at::kDouble).view({4, 4}));
    const ImplicitRedistributionScope refused;
    for (const auto& run :
         std::vector<std::function<void()>>{[&] { at::as_strided(x, {4}, {5}); }, [&] { x.resize_({5}); }}) {
      const auto error = error_of(run);
      EXPECT_NE(error.find("ImplicitRedistributionScope refuses that"), std::string::npos) << error;
    }
    EXPECT_EQ(at::as_strided(x, {4}, {4}).sizes(), (at::IntArrayRef{4}));  // A column: no redistribution.
    EXPECT_EQ(x.sizes(), (at::IntArrayRef{4, 4}));
  });
}

}  // namespace
}  // namespace dtensor::test
