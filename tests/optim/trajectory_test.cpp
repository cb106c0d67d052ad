// The recorded trajectories on one device and, equal up to rounding, on meshes with any placements.
#include "optim/blocks/matrix_functions.h"
#include "optim/mixture.h"
#include "optim/oracle.h"

namespace dtensor::test {
namespace {

constexpr int kSteps = 10;

struct Trajectory {
  std::vector<std::vector<double>> losses;  // Per problem, before each step and after the last.
  std::vector<at::Tensor> final;            // Full tensors.
};

// `place` makes a parameter from a full tensor; gradients get the same placements.
using Place = std::function<at::Tensor(std::size_t, const at::Tensor&)>;

Trajectory run(const Config& config, at::ScalarType dtype, const Place& place, const Place& place_gradient) {
  const auto all = problems(dtype, config.matrices_only);
  std::vector<at::Tensor> parameters;
  for (std::size_t j = 0; j < all.size(); ++j) parameters.push_back(place(j, all[j].start).requires_grad_());
  const auto optimizer = config.make(parameters);
  Trajectory result;
  result.losses.resize(all.size());
  for (int step = 0; step <= kSteps; ++step) {
    for (std::size_t j = 0; j < all.size(); ++j) {
      const at::Tensor full = full_of(parameters[j]);
      result.losses[j].push_back(all[j].loss(full));
      if (step == kSteps) result.final.push_back(full);
      parameters[j].mutable_grad() = place_gradient(j, all[j].gradient(full));
    }
    if (step < kSteps) optimizer->step();
  }
  return result;
}

Trajectory one_device(const Config& config, at::ScalarType dtype) {
  const auto regular = [](std::size_t, const at::Tensor& t) { return t.clone(); };
  return run(config, dtype, regular, regular);
}

void expect_near(const std::vector<double>& actual, const nlohmann::json& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double e = expected[i].get<double>();
    EXPECT_NEAR(actual[i], e, tolerance * std::max(1.0, std::abs(e))) << what << " at " << i;
  }
}

std::vector<double> numbers(const at::Tensor& t) {
  const at::Tensor flat = t.to(at::kDouble).reshape({-1}).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

TEST(Trajectory, SingleDeviceMatchesRecorded) {
  for (const Config& config : configs()) {
    const Trajectory f32 = one_device(config, at::kFloat), f64 = one_device(config, at::kDouble);
    const auto all = problems(at::kFloat, config.matrices_only);
    for (std::size_t j = 0; j < all.size(); ++j) {
      const std::string what = std::string(config.name) + " " + all[j].name();
      const auto& stored = optim_data()["trajectories"][config.name]["shapes"][all[j].name()];
      expect_near(f32.losses[j], stored["loss"], config.tolerance, what + " loss");
      expect_near(numbers(f32.final[j]), stored["final"], config.tolerance, what + " final");
      const bool exact = stored.contains("loss_float64") && config.tolerance < 0.1;
      if (exact) expect_near(f64.losses[j], stored["loss_float64"], 1e-9, what + " float64");
    }
  }
}

void expect_same(const Trajectory& actual, const Trajectory& expected, double tolerance, const std::string& what) {
  for (std::size_t j = 0; j < expected.final.size(); ++j) {
    expect_close(actual.final[j], expected.final[j], what + " problem " + std::to_string(j), tolerance);
  }
}

void check_layout(const Config& config, at::ScalarType dtype, const Shape& mesh_shape, std::uint64_t seed) {
  const Trajectory expected = one_device(config, dtype);
  const double tolerance =
      dtype == at::kDouble ? (config.tolerance > 0.1 ? 1e-5 : 1e-9) : std::max(config.tolerance, 1e-5);
  on_mesh(mesh_shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    std::vector<Placements> placements;
    for (const Problem& p : problems(dtype)) {
      placements.push_back(any_shards(draw, mesh.ndim(), static_cast<std::int64_t>(p.shape.size()), true));
    }
    const Place place = [&](std::size_t j, const at::Tensor& t) { return distribute_tensor(t, mesh, placements[j]); };
    const Place place_gradient = [&](std::size_t j, const at::Tensor& t) {
      auto regular = placements[j];
      for (auto& p : regular) p = p.as_storage(false);
      return distribute_tensor(t, mesh, regular);
    };
    std::string what = config.name;
    for (const auto& p : placements) what += " " + to_string(p);
    expect_same(run(config, dtype, place, place_gradient), expected, tolerance, what);
  });
}

TEST(Trajectory, EveryLayoutMatchesRecorded) {
  const auto start = std::random_device()();
  SCOPED_TRACE("start " + std::to_string(start));
  Draw draw(start);
  for (const Config& config : configs()) {
    for (const Shape& mesh : {Shape{2}, Shape{3}, Shape{2, 2}}) {
      const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 30));
      check_layout(config, draw.coin() ? at::kDouble : at::kFloat, mesh, seed);
    }
  }
}

TEST(Roots, MatchRecorded) {
  const auto& newton = optim_data()["newton_schulz5"];
  const at::Tensor x = fill({6, 10}, 300);
  // Five iterations amplify the rounding of products, which depends on the processor.
  expect_near(numbers(optim::newton_schulz(x, 5)), newton["output_f32"], 1e-5, "newton_schulz");
  expect_near(numbers(optim::newton_schulz(x.to(at::kBFloat16), 5)), newton["output_bf16"], 1e-6, "in bf16");
  const at::Tensor a = fill({6, 9}, 301), s = a.mm(a.t());
  expect_near(numbers(optim::inverse_root(s.to(at::kDouble), 2, 0)),
              optim_data()["inverse_4th_root"]["S^-1/4 (float64)"], 1e-5, "inverse root");
}

}  // namespace
}  // namespace dtensor::test
