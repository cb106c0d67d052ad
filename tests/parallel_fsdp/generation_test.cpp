// What was derived from a tensor (a gathered unit, a cast, a reduced form, a materialized view) is not used once
// the tensor has changed, by whatever alias it was written to or whatever replaced its data.
#include <c10/core/InferenceMode.h>

#include "parallel_fsdp/tower.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

struct Linear {
  at::Tensor w, x;
  at::Tensor operator()(const at::Tensor& weight) const {
    return DTensor(at::mm(x, weight.to(at::kFloat)).detach()).full_tensor();
  }
};

// x w = 4 everywhere; the unit stays gathered.
Linear linear(const DeviceMesh& mesh, const MixedPrecision& precision = {}) {
  Linear result{at::ones({4, 3}), distribute_tensor(at::ones({6, 4}), mesh, {Shard(0)})};
  fully_shard({{"w", &result.w}}, mesh, {.reshard_after_forward = false, .precision = precision});
  return result;
}

at::Tensor all(double value, at::IntArrayRef sizes = {6, 3}) { return at::full(sizes, value, at::kFloat); }

at::Tensor like(const at::Tensor& w, double value) {
  return distribute_tensor(at::full(w.sizes(), value, w.scalar_type()), DTensor(w).mesh(), DTensor(w).placements());
}

TEST(Generation, GatheredUnitIsInvalidatedBySetDataAndWrites) {
  using Change = std::function<void(at::Tensor)>;
  const std::vector<Change> changes = {
      [](at::Tensor w) { w.set_data(like(w, 5)); },
      [](at::Tensor w) { w.mul_(5); },
      [](at::Tensor w) { w.view({12}).mul_(5); },
      [](at::Tensor w) { w.detach().mul_(5); },
      [](at::Tensor w) { w.variable_data().mul_(5); },
      [](at::Tensor w) { DTensor(w).to_local().mul_(5); },
      [](at::Tensor w) { DTensor(w.view({12})).to_local().mul_(5); },
      [](at::Tensor w) { DTensor(w.t()).to_local().mul_(5); },
      [](at::Tensor w) { at::_foreach_mul_({w}, 5); },
  };
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const auto run = linear(mesh);
      expect_close(run(run.w), all(4), "before");
      changes[i](run.w);
      expect_close(run(run.w), all(20), "change " + std::to_string(i));
    }
  });
}

// Changes to other placements with the same local number of elements, to Replicate, and back.
TEST(Generation, UnitIsUsedOnlyForParametersInItsPlacements) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    Draw draw(3);
    const auto regular = draw.normal({4, 4}), x = draw.normal({6, 4});
    at::Tensor w = regular.clone();
    const auto unit = fully_shard({{"w", &w}}, mesh, {.reshard_after_forward = false});
    const auto split = distribute_tensor(x, mesh, {Shard(0)});
    for (const Placement& place : {Shard(0).as_storage(), Shard(1).as_storage(), Replicate(), Shard(0).as_storage()}) {
      DTensor(w).redistribute_({place});
      const auto before = unit.stats().all_gathers;
      for (int use = 0; use < 2; ++use) expect_close(at::mm(split, w), at::mm(x, regular), place.str());
      EXPECT_EQ(unit.stats().all_gathers - before, place.is_shard(0) ? 1 : 0) << place.str();
    }
  });
}

// The unit gathers its other parameters without it, and all gradients equal those of one device.
TEST(Generation, RedistributedParameterIsExcludedFromTheGathersOfItsUnit) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(3), tower(3);
    const auto unit = fully_shard(tower.list(), mesh);
    const auto x = sharded(input(), mesh);
    for (const Placement& place : {Shard(0).as_storage(), Shard(1).as_storage(), Replicate(), Shard(0).as_storage()}) {
      {
        const at::NoGradGuard no_grad;
        DTensor(tower.w[1]).redistribute_({place});
        tower.w[1].mutable_grad().reset(), regular.w[1].mutable_grad().reset();
      }
      for (int step = 0; step < 2; ++step) {
        const auto loss = tower.loss(x), wanted = regular.loss(input());
        expect_close(loss, wanted, place.str());
        loss.backward(), wanted.backward();
        expect_same_gradients(tower.w, regular.w);
      }
      EXPECT_EQ(unit.stats().gathered_bytes, 0);
    }
  });
}

// A failed gather must not be used: each use raises the error again, and nothing counts as gathered afterwards.
TEST(Generation, FailedGatherIsNotUsed) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(2);
    const auto unit = fully_shard(tower.list(), mesh);
    const auto x = sharded(input(), mesh);
    const at::NoGradGuard no_grad;
    tower.w[1].reset();
    for (int use = 0; use < 3; ++use) {
      EXPECT_NE(error_of([&] { at::linear(x, tower.w[0]); }).find("parameter 'w1' was freed"), std::string::npos);
      EXPECT_EQ(unit.stats().gathered_bytes, 0);
    }
  });
}

TEST(Generation, GatheredUnitOfInferenceTensorsIsInvalidatedByWrites) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const c10::InferenceMode inference;
    const auto run = linear(mesh);
    expect_close(run(run.w), all(4), "before");
    run.w.mul_(5);
    expect_close(run(run.w), all(20), "after");
  });
}

// As on one device: a view or cast that was taken before set_data keeps the former data.
TEST(Generation, ViewsAndCastsKeepTheirData) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    const auto run = linear(mesh);
    const auto view = run.w.t(), cast = run.w.to(at::kBFloat16), copy = run.w.detach();
    expect_close(run(run.w), all(4), "before");
    run.w.set_data(like(run.w, 5));
    expect_close(run(run.w), all(20), "parameter");
    expect_close(run(view.t()), all(4), "view");
    expect_close(run(cast), all(4), "cast");
    expect_close(run(copy), all(4), "detached copy");
    expect_close(run(run.w.t().t()), all(20), "new view");
  });
}

TEST(Generation, CastIsRepeatedAfterSetData) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    auto run = linear(mesh, {.param_dtype = at::kBFloat16});
    NamedTensors list{{"w", &run.w}};
    for (const double value : {1, 5, 3}) {
      run.w.set_data(like(run.w, value));
      const ComputeScope scope(list);
      EXPECT_EQ(run.w.scalar_type(), at::kBFloat16);
      expect_close(run(run.w), all(4 * value), "in bf16");
    }
  });
}

at::Tensor shares(const DeviceMesh& mesh, at::ScalarType type = at::kFloat) {
  return DTensor::from_local(at::ones({3, 4}, type), mesh, {Partial()}, {3, 4});
}

TEST(Generation, ReducedFormIsInvalidatedByLocalWritesToViews) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = shares(mesh);
    const auto view = x.view({12});
    expect_close(at::abs(x), all(2, {3, 4}), "before");
    DTensor(view).to_local().mul_(3);
    expect_close(at::abs(x), all(6, {3, 4}), "after");
    x.set_data(shares(mesh));
    expect_close(at::abs(x), all(2, {3, 4}), "other data");
  });
}

TEST(Generation, AMovedViewSeesWritesToTheLocalPartOfItsBase) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto base = distribute_tensor(at::ones({4, 6}), mesh, {Shard(1)});
    const auto view = base.select(1, 3);
    expect_close(view, all(1, {4}), "before");
    DTensor(base).to_local().mul_(3);
    expect_close(view, all(3, {4}), "after");
    DTensor(base.t()).to_local().mul_(2);
    expect_close(view, all(6, {4}), "through another view");
  });
}

}  // namespace
}  // namespace dtensor::test
