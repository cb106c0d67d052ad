// Lists of parameters as programs have them: ranks with and without handles to gradients of other ranks.
#include <cstdlib>

#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using List = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<Optimizer>(const List&)>;

const std::vector<std::pair<const char*, Make>>& spreading() {
  static const std::vector<std::pair<const char*, Make>> all{
      {"muon, which communicates one dtype", [](const List& p) { return std::make_unique<Muon>(p); }},
      {"muon", [](const List& p) { return std::make_unique<Muon>(p, MuonOptions{.bfloat16 = false}); }},
      {"shampoo", [](const List& p) { return std::make_unique<Shampoo>(p, ShampooOptions{.start = 1}); }}};
  return all;
}

// The first parameter is on ranks 0 and 1 only, and has the dtype of the last.
List three_of_two_types(const DeviceMesh& two, const DeviceMesh& all, bool everywhere) {
  Draw draw(1);
  List parameters;
  for (const bool first : {true, false, false}) {
    const auto dtype = parameters.size() == 1 ? at::kFloat : at::kDouble;
    const DeviceMesh& mesh = first ? two : all;
    const auto placed = [&] { return distribute_tensor(draw.normal({6, 6}, dtype), mesh, {Shard(0)}); };
    parameters.push_back(placed().requires_grad_());
    const at::Tensor gradient = placed();
    if (everywhere || mesh.is_member()) parameters.back().mutable_grad() = gradient;
  }
  return parameters;
}

// DTENSOR_CHECKED records a list over two meshes as a call on the first mesh, and the list is shorter without the
// handle. So the test turns it off.
TEST(Lists, RanksWithoutHandleToOtherGradientsStepAlike) {
  const char* checked = std::getenv("DTENSOR_CHECKED");
  const std::string former = checked == nullptr ? "" : checked;
  ::unsetenv("DTENSOR_CHECKED");
  run_local(3, [](const Communicator& world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {3}), two = device_mesh(world, at::kCPU, {0, 1}, {2});
    for (const auto& [name, make] : spreading()) {
      const List with = three_of_two_types(two, all, true), without = three_of_two_types(two, all, false);
      for (const List* parameters : {&with, &without}) make(*parameters)->step();
      for (std::size_t i = 1; i < 3; ++i) EXPECT_TRUE(at::equal(full_of(with[i]), full_of(without[i]))) << name;
    }
  });
  if (checked != nullptr) ::setenv("DTENSOR_CHECKED", former.c_str(), 1);
}

const std::vector<std::pair<const char*, Make>>& elementwise() {
  static const std::vector<std::pair<const char*, Make>> all{
      {"adamw", [](const List& p) { return std::make_unique<AdamW>(p); }},
      {"sgd", [](const List& p) { return std::make_unique<SGD>(p, SGDOptions{.momentum = 0.9}); }},
      {"adagrad", [](const List& p) { return std::make_unique<Adagrad>(p); }},
      {"muon", [](const List& p) { return std::make_unique<Muon>(p); }},
      {"shampoo", [](const List& p) { return std::make_unique<Shampoo>(p); }}};
  return all;
}

// As after converting a model to another memory format between two steps.
TEST(Lists, ParametersMayChangeMemoryFormat) {
  for (const auto& [name, make] : elementwise()) {
    List expected{Draw(1).normal({4, 3}).requires_grad_()}, relaid{expected[0].detach().clone().requires_grad_()};
    const auto first = make(expected), second = make(relaid);
    for (const std::uint64_t step : {2, 3, 4}) {
      for (const List* p : {&expected, &relaid}) p->front().mutable_grad() = Draw(step).normal({4, 3});
      first->step(), second->step();
      relaid[0].set_data(relaid[0].detach().t().contiguous().t());
    }
    expect_close(relaid[0].detach(), expected[0].detach(), name);
  }
}

// Parameters are written after the last collective, so that a failing collective leaves them unchanged. Two dtypes make
// two calls of ATen.
TEST(Lists, RedistributedParametersAreWrittenAfterTheLastCollective) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& [name, make] : elementwise()) {
      List parameters, locals, before;
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        const DTensor placed = distribute_tensor(Draw(1).normal({4, 6}, dtype), mesh, {Shard(0)});
        parameters.push_back(placed.requires_grad_());
      }
      const auto optimizer = make(parameters);
      const auto step = [&] {
        for (const at::Tensor& p : parameters) p.mutable_grad() = at::ones_like(p);
        optimizer->step();
      };
      step();
      for (const at::Tensor& p : parameters) {
        DTensor(p).redistribute_({Shard(1)});
        locals.push_back(DTensor(p.detach()).to_local());
        before.push_back(locals.back().clone());
      }
      int moved = 0;
      const EventListener listener(
          [&](const Event&) {
            ++moved;
            for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(locals[i], before[i])) << name;
          },
          {Event::Kind::collective});
      step();
      EXPECT_GT(moved, 0) << name;
      for (std::size_t i = 0; i < 2; ++i) EXPECT_FALSE(at::equal(locals[i], before[i])) << name;
    }
  });
}

// Kernels would read and write beyond the end of such tensors.
TEST(Lists, GradientsAndStateOfDifferentSizesAreErrors) {
  for (const auto& [name, make] : elementwise()) {
    List p{at::ones({4, 4}).requires_grad_()};
    const auto optimizer = make(p);
    for (const Shape& sizes : {Shape{2, 4}, Shape{1}}) {
      p[0].mutable_grad() = at::ones(sizes);
      const std::string error = error_of([&] { optimizer->step(); });
      EXPECT_NE(error.find("the gradient of parameter 0 has sizes"), std::string::npos) << name << ": " << error;
    }
    p[0].mutable_grad() = at::ones({4, 4});
    optimizer->step();
    p[0].mutable_grad().reset();
    p[0].set_data(at::ones({8, 4}));
    p[0].mutable_grad() = at::ones({8, 4});
    const std::string error = error_of([&] { optimizer->step(); });
    EXPECT_NE(error.find("the state of parameter 0 has sizes [4, 4]"), std::string::npos) << name << ": " << error;
  }
}

}  // namespace
}  // namespace dtensor::test
