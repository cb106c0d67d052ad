// Total norms and clipping over mixtures of meshes and regular tensors. They equal those of one
// device, count each element once, and need at most one collective.
#include <cmath>

#include "optim/mixture.h"

namespace dtensor::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double regular_norm(const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& t : tensors) flat.push_back(t.to(at::kDouble).reshape({-1}));
  const at::Tensor all = at::cat(flat);
  return all.numel() == 0 ? 0 : at::linalg_vector_norm(all, p).item<double>();
}

std::vector<at::Tensor> full_tensors(const std::vector<Item>& items) {
  std::vector<at::Tensor> result;
  for (const Item& item : items) result.push_back(item.full);
  return result;
}

// As `place`, but some axes are Partial: rank r of n has (r + 1) / (1 + ... + n) of the value.
at::Tensor place_partial(const Item& item, const std::vector<DeviceMesh>& meshes) {
  const at::Tensor placed = place(item, item.full, meshes, false);
  if (item.mesh == kRegular || item.mesh == 0 || !item.placements[0].is_replicate()) return placed;
  const DeviceMesh& mesh = meshes[static_cast<std::size_t>(item.mesh)];
  const auto n = static_cast<double>(mesh.size());
  const double share = mesh.is_member() ? 2 * static_cast<double>(mesh.coordinate()->at(0) + 1) / (n * (n + 1)) : 0;
  const at::Tensor local = mesh.is_member() ? (item.full * share).to(item.full.scalar_type()) : at::Tensor();
  if (!mesh.is_member()) return placed;
  return DTensor::from_local(local, mesh, {Partial()}, item.full.sizes(), item.full.strides());
}

struct Count {
  int collectives = 0;
  std::int64_t bytes = 0;
  EventListener listener{[this](const Event& e) {
    if (e.kind != Event::Kind::collective) return;
    ++collectives;
    bytes += e.bytes;
  }};
};

TEST(TotalNorm, EqualsOneDeviceOnMixedMeshes) {
  EXPECT_TRUE(rc::check("the norm equals that of one device", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const auto dtype = *rc::gen::element(at::kDouble, at::kFloat);
    const auto items = any_items(draw, dtype);
    const double p = *rc::gen::element(1.0, 2.0, 3.0, kInfinity);
    const bool partial = draw.coin(),
               regular = std::any_of(items.begin(), items.end(), [](auto&i) { return i.mesh == kRegular; });
    const double expected = regular_norm(full_tensors(items), p);
    run_local(4, [&](Communicator world) {
      const auto meshes = meshes_of(world);
      std::vector<at::Tensor> tensors;
      for (const Item& item : items) {
        tensors.push_back(partial ? place_partial(item, meshes) : place(item, item.full, meshes));
      }
      const bool here = regular || std::any_of(tensors.begin(), tensors.end(), is_local_member);
      Count count;
      const at::Tensor norm = get_total_norm(tensors, {.norm_type = p});
      EXPECT_EQ(norm.defined(), here);
      EXPECT_LE(count.collectives, partial ? 3 : 1);
      if (!here) return;
      EXPECT_FALSE(is_dtensor(norm));
      EXPECT_EQ(norm.scalar_type(), dtype);
      EXPECT_NEAR(norm.item<double>(), expected, (dtype == at::kDouble ? 1e-9 : 1e-6) * (1 + expected)) << "p " << p;
    });
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Reductions over several axes do not commute, so the norm is that of full_tensor().
TEST(TotalNorm, OfMixedPartialsIsThatOfTheFullTensor) {
  for (const auto& placements :
       {Placements{Partial(ReduceOp::max), Partial()}, Placements{Partial(), Partial(ReduceOp::max)},
        Placements{Partial(ReduceOp::min), Partial(ReduceOp::product)}}) {
    run_local(4, [&](Communicator world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2});
      const double values[4] = {1, 10, 7, 2};
      const DTensor x = DTensor::from_local(at::full({1}, values[world.rank()], at::kDouble), mesh, placements, {1});
      const double expected = x.full_tensor().item<double>();
      EXPECT_EQ(get_total_norm({x}).item<double>(), expected) << to_string(placements);
      EXPECT_EQ(get_total_norm({x, x}, {.norm_type = 1}).item<double>(), 2 * expected) << to_string(placements);
    });
  }
}

TEST(ClipGradNorm, EqualsOneDevice) {
  EXPECT_TRUE(rc::check("the clipped gradients equal those of one device", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const auto items = any_items(draw, at::kDouble);
    const double max_norm = *rc::gen::element(0.1, 1.0, 100.0);
    const double norm = regular_norm(full_tensors(items), 2), factor = std::min(1.0, max_norm / (norm + 1e-6));
    run_local(4, [&](Communicator world) {
      const auto meshes = meshes_of(world);
      std::vector<at::Tensor> parameters;
      for (const Item& item : items) {
        parameters.push_back(at::zeros_like(place(item, item.full, meshes)).requires_grad_());
        parameters.back().mutable_grad() = place_partial(item, meshes);
      }
      const at::Tensor got = clip_grad_norm_(parameters, max_norm);
      if (got.defined()) {
        EXPECT_NEAR(got.item<double>(), norm, 1e-9 * (1 + norm));
      }
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (is_local_member(parameters[i]))
          expect_close(parameters[i].grad(), items[i].full * factor, "gradient", 1e-9);
      }
    });
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Ranks may have different sets of gradients: which ranks communicate follows from the parameters.
TEST(ClipGradNorm, MissingGradientsCountAsZero) {
  run_local(4, [](Communicator world) {
    const auto meshes = meshes_of(world);
    const at::Tensor a = at::zeros_like(place({at::ones({4}), 0, {Shard(0), Replicate()}}, at::ones({4}), meshes));
    const at::Tensor b = at::zeros_like(place({at::ones({3}), 1, {Shard(0)}}, at::ones({3}), meshes));
    a.requires_grad_().mutable_grad() = at::full_like(a, 2);
    if (meshes[1].is_member()) b.requires_grad_().mutable_grad() = at::full_like(b, 3);
    const std::vector<at::Tensor> parameters{a, b};
    EXPECT_NEAR(clip_grad_norm_(parameters, 1).item<double>(), std::sqrt(16 + 27), 1e-6);
  });
}

int collectives_for(const DeviceMesh& mesh, const std::vector<Placements>& placements) {
  std::vector<at::Tensor> tensors;
  for (const auto& p : placements) tensors.push_back(distribute_tensor(at::ones({4, 4}), mesh, p));
  Count count;
  get_total_norm(tensors);
  return count.collectives;
}

TEST(TotalNorm, OneCollectiveAtMost) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    EXPECT_EQ(collectives_for(mesh, {{Replicate(), Replicate()}}), 0);
    EXPECT_EQ(collectives_for(mesh, {{Replicate(), Shard(0)}, {Replicate(), Replicate()}}), 1);
    EXPECT_EQ(collectives_for(mesh, {{Shard(0), Shard(1)}, {Replicate(), Shard(0)}, {Shard(1), Replicate()}}), 1);
    EXPECT_EQ(collectives_for(mesh, {{Partial(), Shard(0)}, {Partial(), Shard(1)}}), 2);  // One to reduce the Partials.
    // Two views of the same ranks need one collective as well.
    const std::vector<at::Tensor> tensors{distribute_tensor(at::ones({4}), mesh, {Shard(0), Replicate()}),
                                          distribute_tensor(at::ones({5}), mesh.view({4}), {Shard(0)})};
    Count count;
    EXPECT_NEAR(get_total_norm(tensors).item<double>(), 3, 1e-6);
    EXPECT_EQ(count.collectives, 1);
    EXPECT_EQ(count.bytes > 0, true);
  });
}

TEST(TotalNorm, TenThousandTensorsInOnePass) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor one = distribute_tensor(at::ones({3}), mesh, {Shard(0)});
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 10000; ++i) {
      parameters.push_back(at::zeros_like(one).requires_grad_());
      parameters.back().mutable_grad() = one.clone();
    }
    AdamW optimizer(parameters);
    Count count;
    EXPECT_NEAR(clip_grad_norm_(parameters, 1).item<double>(), std::sqrt(30000), 1e-3);
    EXPECT_EQ(count.collectives, 1);
    optimizer.step();
    EXPECT_EQ(count.collectives, 1);
    EXPECT_NEAR(full_of(parameters[9999].grad())[0].item<double>(), 1 / std::sqrt(30000), 1e-6);
  });
}

// Sizes below and above the limit of the library's own loop, and strided tensors.
TEST(TotalNorm, SmallAndLargeTensors) {
  Draw draw(3);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double p : {1.0, 2.0, 3.0, 2.5, kInfinity}) {
      const std::vector<at::Tensor> tensors{draw.normal({200, 100}, dtype), draw.normal({7, 3}, dtype).t(),
                                            draw.normal({30, 40}, dtype).slice(1, 0, 40, 3)};
      const double expected = regular_norm(tensors, p);
      EXPECT_NEAR(get_total_norm(tensors, {.norm_type = p}).item<double>(), expected, 1e-5 * expected)
          << p << " " << dtype;
    }
  }
}

TEST(TotalNorm, HalvesEmptiesAndNonFinite) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const at::Tensor half =
        distribute_tensor(at::full({4, 100}, 100, at::kHalf), mesh, {Shard(0)});  // The squares overflow.
    EXPECT_NEAR(get_total_norm({half}).item<double>(), 2000, 1);
    EXPECT_EQ(get_total_norm({half}).scalar_type(), at::kFloat);
    const at::Tensor few = distribute_tensor(at::tensor({-7.0, 3.0}), mesh, {Shard(0)});  // Empty on rank 2.
    EXPECT_EQ(get_total_norm({few}, {.norm_type = kInfinity}).item<double>(), 7);
    const at::Tensor bad = distribute_tensor(at::tensor({1.0, NAN, 2.0}), mesh, {Shard(0)});
    for (const double p : {2.0, kInfinity}) {
      EXPECT_TRUE(std::isnan(get_total_norm({bad}, {.norm_type = p}).item<double>()));
      EXPECT_THROW(get_total_norm({bad}, {.norm_type = p, .error_if_nonfinite = true}), c10::Error);
    }
    EXPECT_THROW(get_total_norm({few}, {.norm_type = 0}), c10::Error);
    EXPECT_EQ(get_total_norm({}).item<double>(), 0);
  });
}

// AdamW that divides the gradients itself equals clipping before the step, within the rounding of the divisor and of
// the quotient: clipping multiplies by a rounded factor.
TEST(ClipDivisor, AdamWEqualsClippingBeforeTheStep) {
  EXPECT_TRUE(rc::check("states and parameters are equal", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const auto dtype = *rc::gen::element(at::kDouble, at::kFloat);
    const auto items = any_items(draw, dtype);
    const bool fused = draw.coin();
    const double max_norm = *rc::gen::element(0.5, 1000.0);
    std::vector<at::Tensor> gradients;
    for (const Item& item : items) gradients.push_back(draw.normal(item.full.sizes().vec(), dtype));
    run_local(4, [&](Communicator world) {
      const auto meshes = meshes_of(world);
      const auto run = [&](bool inside) {
        std::vector<at::Tensor> parameters, found;
        for (std::size_t i = 0; i < items.size(); ++i) {
          parameters.push_back(place(items[i], items[i].full, meshes).requires_grad_());
          parameters[i].mutable_grad() = place(items[i], gradients[i], meshes, false);
        }
        AdamW optimizer(parameters, {.lr = 0.1, .fused = fused});
        if (inside) {
          std::vector<at::Tensor> given;
          for (const at::Tensor& p : parameters) given.push_back(p.grad());
          optimizer.divide_gradients(clip_divisor(max_norm, get_total_norm(given)));
        } else {
          clip_grad_norm_(parameters, max_norm);
        }
        optimizer.step();
        for (const at::Tensor& p : parameters) {
          if (!is_local_member(p)) continue;
          found.push_back(full_of(p));
          for (const auto& [name, state] : optimizer.state(p)) found.push_back(full_of(state));
        }
        return found;
      };
      const auto found = run(true), expected = run(false);
      ASSERT_EQ(found.size(), expected.size());
      const double tolerance = dtype == at::kDouble ? 1e-15 : 4e-7;
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::allclose(found[i], expected[i], tolerance, tolerance)) << i << " fused " << fused;
      }
    });
  }));
}

}  // namespace
}  // namespace dtensor::test
