// Pipeline::clip_grad_norm_ in a BitIdentical scope has the bits of clip_grad_norm_ on one device, which lists the
// parameters of all stages in order.
#include "bit_identical/bits.h"
#include "dtensor/events.h"
#include "dtensor/optim/clip.h"
#include "dtensor/pipeline.h"
#include "support/draws.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using pipeline::Pipeline;

// Gradients by stage, and their pipeline of two ranks.
struct Model {
  std::string schedule;
  std::vector<Tensors> gradients;
  int inner = 1;  // ranks of a stage
  double max_norm = 1;
};

struct Clipped {
  double norm = 0;
  Tensors gradients = {};
};

// Magnitudes differ, so that another order of the sum has other bits.
at::Tensor drawn_gradient(Draw& draw) {
  const auto type = draw.integer(0, 9) == 0 ? at::kDouble : at::kFloat;
  return draw.normal({draw.integer(1, 9), draw.integer(1, 40)}, type) * std::exp2(draw.integer(-12, 12));
}

Model drawn_model() {
  Draw draw(*rc::gen::inRange<std::uint64_t>(0, 1u << 30));
  Model model{.schedule = one_of({"1f1b", "interleaved", "zbv"}),
              .gradients = {},
              .inner = one_of({1, 2, 3}),
              .max_norm = one_of({1e-2, 1.0, 1e9})};
  model.gradients.resize(model.schedule == std::string("1f1b") ? 2 : 4);
  for (Tensors& stage : model.gradients) {
    for (auto count = draw.integer(0, 4); count > 0; --count) stage.push_back(drawn_gradient(draw));
  }
  return model;
}

Tensors parameters_on(const DeviceMesh& mesh, const Tensors& gradients) {
  Tensors parameters;
  for (const at::Tensor& g : gradients) {
    const Placements where{parameters.size() % 2 == 0 ? Placement(Shard(0)) : Placement(Replicate())};
    parameters.push_back(distribute_tensor(at::zeros_like(g), mesh, where).requires_grad_());
    parameters.back().mutable_grad() = distribute_tensor(g, mesh, where);
  }
  return parameters;
}

Clipped clip_on_one_device(const Model& model) {
  Clipped clipped;
  on_mesh({1}, [&](const DeviceMesh& mesh) {
    Tensors all;
    for (const Tensors& stage : model.gradients) all.insert(all.end(), stage.begin(), stage.end());
    const auto parameters = parameters_on(mesh, all);
    const BitIdentical scope;
    clipped.norm = clip_grad_norm_(parameters, model.max_norm).item<double>();
    for (const at::Tensor& p : parameters) clipped.gradients.push_back(full_of(p.grad()));
  });
  return clipped;
}

using Inspect = std::function<void(Pipeline& pipe)>;

// Calls `inspect` on every rank with the pipeline whose stages have the model's parameters; returns what it leaves.
Tensors in_stages(const Model& model, const Inspect& inspect) {
  std::vector<Tensors> left(model.gradients.size());
  run_local(2 * model.inner, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, model.inner}, {"pp", "inner"});
    Pipeline pipe(mesh, pipeline::make_schedule(model.schedule, 2, 4), {});
    std::map<int, Tensors> own;
    for (const int stage : pipe.stages()) {
      own[stage] = parameters_on(pipe.stage_mesh(), model.gradients[static_cast<std::size_t>(stage)]);
      pipe.set_stage(stage, {}, own[stage]);
    }
    inspect(pipe);
    for (const auto& [stage, parameters] : own) {
      Tensors full;
      for (const at::Tensor& p : parameters) full.push_back(full_of(p.grad()));
      if (pipe.stage_mesh().coordinate()->front() == 0) left[static_cast<std::size_t>(stage)] = full;
    }
  });
  Tensors all;
  for (const Tensors& stage : left) all.insert(all.end(), stage.begin(), stage.end());
  return all;
}

void stages_have_the_bits_of_one_device() {
  const Model model = drawn_model();
  const Clipped expected = clip_on_one_device(model);
  const auto gradients = in_stages(model, [&](Pipeline& pipe) {
    const BitIdentical scope;
    const double norm = pipe.clip_grad_norm_(model.max_norm).item<double>();
    TORCH_CHECK(norm == expected.norm, model.schedule, ": the norm differs by ", norm - expected.norm);
  });
  require_same_bits(gradients, expected.gradients, model.schedule + " with " + std::to_string(model.inner));
}

TEST(BitIdenticalPipelineClip, HasTheBitsOfOneDevice) {
  check_property("clipping in stages", stages_have_the_bits_of_one_device, 40);
}

// Stages exchange a few integers for each stage, and eight bytes for each parameter, as outside the scope.
TEST(BitIdenticalPipelineClip, ExchangesANumberForEachParameter) {
  Draw draw(1);
  Model model{.schedule = "interleaved", .gradients = {4, {drawn_gradient(draw), drawn_gradient(draw)}}, .inner = 2};
  for (const bool scoped : {false, true}) {
    in_stages(model, [&](Pipeline& pipe) {
      std::optional<BitIdentical> scope;
      if (scoped) scope.emplace();
      std::vector<std::int64_t> received;
      const EventListener listener(
          [&](const Event& event) {
            if (event.axis == "pp") received.push_back(event.bytes);
          },
          {Event::Kind::collective});
      pipe.clip_grad_norm_(1);
      const std::int64_t facts = 4 * 4 * 8, squares = 4 * 2 * 8;  // an all-reduce of two ranks receives its size
      EXPECT_EQ(received, (std::vector{facts, squares})) << scoped;
    });
  }
}

TEST(BitIdenticalPipelineClip, OfRegularTensorsIsRefusedOnEveryRank) {
  std::atomic<int> refused = 0;
  in_stages({.schedule = "1f1b", .gradients = {{at::ones({3, 2})}, {at::ones({2, 2})}}}, [&](Pipeline& pipe) {
    if (pipe.stages()[0] == 1) pipe.set_stage(1, {}, {at::ones({2}).requires_grad_()});
    const BitIdentical scope;
    const auto error = error_of([&] { pipe.clip_grad_norm_(1); });
    EXPECT_NE(error.find("clip_grad_norm_ of regular tensors has no bit-identical form"), std::string::npos) << error;
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

}  // namespace
}  // namespace dtensor::test
