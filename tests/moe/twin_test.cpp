// The dropless mixture of experts of hidden size 256 on two ranks: a data-parallel reference against expert parallelism
// with parameters on meshes of several kinds, in float and bfloat16, through clipping and AdamW.
#include <gtest/gtest.h>

#include "dtensor/dtensor.h"
#include "dtensor/moe.h"
#include "dtensor/optim.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

constexpr int kSteps = 3;

MoeOptions twin_options(at::ScalarType dtype) {
  MoeOptions o;
  o.hidden = o.ffn = 256;
  o.router.experts = 8;
  o.router.top_k = 2;
  o.router.normalise = true;
  o.experts.activation = ExpertActivation::geglu;
  o.tensor = dtype;
  return o;
}

at::Tensor uniform(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype) {  // (-1, 1)
  std::mt19937_64 engine(seed);
  auto values = at::empty(sizes, at::kDouble);
  auto* out = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) out[i] = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;
  return values.to(dtype);
}

void fill(MixtureOfExperts& layer, at::ScalarType dtype) {
  std::uint64_t seed = 10;
  for (const auto& [name, p] : layer.named_parameters()) *p = uniform(p->sizes(), ++seed, dtype).requires_grad_();
}

at::Tensor batch(int step, at::ScalarType dtype) { return uniform({4, 3, 256}, 100 + step, dtype); }

at::Tensor whole(const at::Tensor& t) {
  return (is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach()).to(at::kDouble).clone();
}

struct Course {
  std::vector<at::Tensor> outputs, gradients, parameters;  // gradients: of the first step
  std::vector<double> norms;
};

// `count`: how many rows the mean is over, for inputs that are a rank's own.
Course train(MixtureOfExperts& layer, const std::function<at::Tensor(const at::Tensor&)>& place, at::ScalarType dtype) {
  AdamW optimizer(layer.parameters(), {.lr = 1e-2});
  Course course;
  for (int step = 0; step < kSteps; ++step) {
    const auto y = layer.forward(place(batch(step, dtype)));
    (y.square().sum() * (1.0 / (4 * 3 * 256))).backward();
    course.outputs.push_back(whole(y));
    for (const auto& p : layer.parameters()) {
      if (step == 0) course.gradients.push_back(whole(p.grad()));
    }
    course.norms.push_back(clip_grad_norm_(layer.parameters(), 1.0).item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& p : layer.parameters()) course.parameters.push_back(whole(p));
  return course;
}

Course reference(at::ScalarType dtype) {
  MixtureOfExperts layer(twin_options(dtype));
  fill(layer, dtype);
  return train(
      layer, [](const at::Tensor& x) { return x; }, dtype);
}

void expect_near(const at::Tensor& got, const at::Tensor& wanted, double bound, const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  EXPECT_LE((got - wanted).norm().item<double>(), bound * wanted.norm().item<double>()) << what;
}

void expect_same(const Course& got, const Course& wanted, double bound, const std::string& what) {
  for (std::size_t i = 0; i < wanted.outputs.size(); ++i) {
    expect_near(got.outputs[i], wanted.outputs[i], bound, c10::str(what, " output ", i));
    EXPECT_NEAR(got.norms[i], wanted.norms[i], bound * wanted.norms[i]) << what << " norm " << i;
  }
  for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
    expect_near(got.gradients[i], wanted.gradients[i], bound, c10::str(what, " gradient ", i));
    expect_near(got.parameters[i], wanted.parameters[i], bound, c10::str(what, " parameter ", i));
  }
}

double bound_of(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 2e-2; }

class Twin : public testing::TestWithParam<at::ScalarType> {};

// [[0, 1]]: the router whole over the expert axis.
TEST_P(Twin, WithWeightAndExpertAxes) {
  const auto dtype = GetParam();
  const auto wanted = reference(dtype);
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1, 2}, {"weight_parallel", "expert_parallel"});
    MixtureOfExperts layer(twin_options(dtype));
    fill(layer, dtype);
    apply_expert_parallel(layer, mesh, {.ep = "expert_parallel", .edp = "weight_parallel"});
    nn::distribute({{"gate.weight", &layer.gate.weight}}, mesh, [](const auto&, const auto&) {
      return Placements{Shard(0).as_storage(), Replicate()};
    });
    const auto place = [&](const at::Tensor& x) -> at::Tensor {
      return distribute_tensor(x, mesh, {Shard(0), Shard(0)});
    };
    expect_same(train(layer, place, dtype), wanted, bound_of(dtype), "two axes");
  });
}

// Everything split over one data-parallel axis, experts gathered where they are used.
TEST_P(Twin, WithAllParametersOnOneMesh) {
  const auto dtype = GetParam();
  const auto wanted = reference(dtype);
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"fsdp"});
    MixtureOfExperts layer(twin_options(dtype));
    fill(layer, dtype);
    layer.distribute(mesh, [](const auto&, const auto&) { return Placements{Shard(0).as_storage()}; });
    const auto place = [&](const at::Tensor& x) -> at::Tensor { return distribute_tensor(x, mesh, {Shard(0)}); };
    expect_same(train(layer, place, dtype), wanted, bound_of(dtype), "one mesh");
  });
}

// The bare form: the router on a mesh of this rank alone, whose copies' gradients the layer sums, and experts on both
// ranks. Norms are taken over the two meshes.
TEST_P(Twin, WithRouterAndExpertsOnDisjointSlices) {
  const auto dtype = GetParam();
  auto wanted = reference(dtype);
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1, 2}, {"weight_parallel", "expert_parallel"});
    MixtureOfExperts layer(twin_options(dtype));
    fill(layer, dtype);
    apply_expert_parallel(layer, mesh["expert_parallel"]);
    nn::distribute({{"gate.weight", &layer.gate.weight}}, mesh["weight_parallel"],
                   [](const auto&, const auto&) { return Placements{Shard(0)}; });
    const auto place = [&](const at::Tensor& x) { return x.chunk(2)[world.rank()].clone(); };
    auto mine = wanted;
    for (auto& y : mine.outputs) y = y.chunk(2)[world.rank()];
    expect_same(train(layer, place, dtype), mine, bound_of(dtype), "bare");
  });
}

INSTANTIATE_TEST_SUITE_P(Types, Twin, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace dtensor::test
