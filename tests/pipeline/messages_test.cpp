// Messages between stages have the values and the memory order that layers on one device pass on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "dtensor/events.h"
#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;

// The first stage computes a tensor from x, and the next one computes from that the value that the loss compares with
// x.
struct Way {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> there, back;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"transposed", [](const at::Tensor& x) { return x.transpose(1, 3); },
       [](const at::Tensor& x) {
         return x.transpose(1, 3).view({x.size(0), -1});
       }},
      {"channels last", [](const at::Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); },
       [](const at::Tensor& x) {
         return x.permute({0, 2, 3, 1}).view({x.size(0), -1});
       }},
      {"expanded",
       [](const at::Tensor& x) {
         return x.unsqueeze(1).expand({-1, 2, -1, -1, -1});
       },
       [](const at::Tensor& x) { return x.sum(1).flatten(1); }},
      {"with gaps", [](const at::Tensor& x) { return x.slice(3, 0, 2); },
       [](const at::Tensor& x) { return (x * 3).transpose(1, 2).flatten(1); }}};
  return all;
}

TEST(PipelineMessages, PreserveMemoryOrder) {
  for (const bool regular : {true, false}) {
    for (const Way& way : ways()) {
      run_local(regular ? 2 : 4, [&](const Communicator& world) {
        const DeviceMesh mesh = regular ? init_device_mesh(world, at::kCPU, {2}, {"pp"})
                                        : init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "dp"});
        Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
        const int stage = pipe.stages()[0];
        pipe.set_stage(stage, [&](const Tensors& in) { return Tensors{(stage == 0 ? way.there : way.back)(in[0])}; });
        const auto placed = [&](const at::Tensor& t) {
          std::vector<Tensors> parts;
          for (const at::Tensor& part : pipeline::microbatches(t, 2))
            parts.push_back({regular ? part : distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
          return parts;
        };
        Draw draw(1);
        const at::Tensor x = draw.normal({4, 2, 3, 5}), y = at::zeros_like(way.back(way.there(x)));
        const at::Tensor full = x.clone().requires_grad_();
        const at::Tensor loss = at::mse_loss(way.back(way.there(full)), y);
        loss.backward();
        std::vector<Tensors> inputs = placed(x);
        for (Tensors& input : inputs) input[0].requires_grad_();
        EXPECT_NEAR(pipe.step(inputs, placed(y)).loss.item<double>(), loss.item<double>(), 1e-12) << way.name;
        for (std::int64_t m = 0; m < 2 && stage == 0; ++m)
          test::expect_close(inputs[static_cast<std::size_t>(m)][0].grad(), full.grad().narrow(0, 2 * m, 2), way.name);
      });
    }
  }
}

// Placements on the same ranks in another order would be other shards of the tensor.
TEST(PipelineMessages, TensorsOfAnotherMeshAreRefused) {
  const auto error_with = [](const std::vector<std::string>& axes, const Placements& placements) {
    return test::error_of([&] {
      run_local(8, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
        Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 1), mean_loss);
        const at::Tensor x = at::arange(16, at::kDouble).view({4, 4}), y = x * 2;
        const DeviceMesh there = mesh[axes];
        pipe.set_stage(pipe.stages()[0], [&](const Tensors& in) {
          return Tensors{pipe.stages()[0] == 0 ? distribute_tensor(x, there, placements) : in[0] * 2};
        });
        const auto placed = [&](const at::Tensor& t) {
          return Tensors{distribute_tensor(t, pipe.stage_mesh(), {Replicate(), Replicate()})};
        };
        EXPECT_EQ(pipe.evaluate({placed(x)}, {placed(y)}).item<double>(), 0);
      });
    });
  };
  const Placements split{Shard(0), Shard(1)};
  EXPECT_EQ(error_with({"dp", "tp"}, split), "no error");
  for (const std::string& error : {error_with({"tp", "dp"}, split), error_with({"tp"}, {Shard(0)})}) {
    EXPECT_NE(error.find("expected outputs of a stage on the stage's mesh"), std::string::npos) << error;
  }
}

// Besides its messages, a step communicates only at its begin, at its end and to broadcast the loss. Each message is a
// header and a tensor.
TEST(PipelineMessages, AreTheOnlyCommunicationWithinAStep) {
  for (const std::string name : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int microbatches : {1, 4}) {
      run_local(2, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
        Pipeline pipe(mesh, pipeline::make_schedule(name, 2, microbatches), mean_loss);
        const at::Tensor weight = Draw(1).normal({3}).requires_grad_();
        pipe.set_stage(world.rank(), [&](const Tensors& in) { return Tensors{in[0] * weight}; }, {weight});
        std::vector<Tensors> batch;
        for (const auto& part : pipeline::microbatches(Draw(2).normal({8, 3}), microbatches)) batch.push_back({part});
        std::map<std::string, int> count;
        const auto counted = [&](const std::function<void()>& fn) {
          count.clear();
          const EventListener listener([&](const Event& e) { ++count[e.name]; }, {Event::Kind::collective});
          fn();
          return count;
        };
        const auto training = counted([&] { pipe.step(batch, batch); });
        const std::map<std::string, int> expected{
            {"all_reduce", 2}, {"broadcast", 1}, {"recv", 2 * microbatches}, {"send", 2 * microbatches}};
        EXPECT_EQ(training, expected) << name << " of " << microbatches;
        const auto evaluation = counted([&] { pipe.evaluate(batch, batch); });
        const std::string own = world.rank() == 0 ? "send" : "recv";
        const std::map<std::string, int> forward{{"all_reduce", 2}, {"broadcast", 1}, {own, 2 * microbatches}};
        EXPECT_EQ(evaluation, forward) << name << " of " << microbatches;
      });
    }
  }
}

// UNSHARD, RESHARD and REDUCE_GRAD send nothing between stages.
TEST(PipelineMessages, AreAddedToSchedulesWithOtherActions) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    auto schedule = pipeline::Schedule::parse("0F0 0F1 0B0 0B1 0REDUCE_GRAD\n1UNSHARD 1F0 1B0 1F1 1B1 1RESHARD");
    schedule.ranks[1].push_back({pipeline::Action::Kind::reduce_grad, 1});
    Pipeline pipe(mesh, schedule, mean_loss);
    const at::Tensor weight = at::ones({3}, at::kDouble).requires_grad_();
    const auto forward = [&](const Tensors& in) {
      TORCH_CHECK(in.size() == 1, "expected 1 input of the stage, got ", in.size());
      return Tensors{in[0] * weight};
    };
    pipe.set_stage(world.rank(), forward, {weight});
    const at::Tensor x = at::arange(3, at::kDouble).expand({2, 3});
    std::vector<Tensors> inputs, targets;
    for (const at::Tensor& part : pipeline::microbatches(x, 2)) inputs.push_back({part}), targets.push_back({part * 2});
    EXPECT_NEAR(pipe.step(inputs, targets).loss.item<double>(), at::mse_loss(x, x * 2).item<double>(), 1e-12);
    test::expect_close(weight.grad(), x[0] * x[0] * -2 / 3, "weight");
  });
}

}  // namespace
}  // namespace dtensor
