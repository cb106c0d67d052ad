// LSTM layers in a dry run: memory and FLOPs are those of the kernel.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/dry_run.h"
#include "dtensor/launch.h"
#include "support/ranks.h"

namespace dry {
namespace {

using namespace dtensor;

struct Lstm {
  std::int64_t steps, rows, input, hidden;
  bool biases, bidirectional;
  at::ScalarType dtype;

  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> all;
    for (int direction = 0; direction < (bidirectional ? 2 : 1); ++direction) {
      for (const auto width : {input, hidden}) all.push_back(at::empty({4 * hidden, width}, dtype));
      for (int i = 0; biases && i < 2; ++i) all.push_back(at::empty({4 * hidden}, dtype));
    }
    for (auto& weight : all) weight.fill_(0.01).requires_grad_();
    return all;
  }

  // Forward and backward of one layer.
  void step(const Communicator&) const {
    const auto x = at::ones({steps, rows, input}, dtype).requires_grad_();
    const auto parameters = weights();
    const auto state = at::zeros({bidirectional ? 2 : 1, rows, hidden}, dtype);
    StepRecorder::begin_step();
    const auto out = at::lstm(x, {state, state}, parameters, biases, /*num_layers=*/1, /*dropout=*/0, /*train=*/true,
                              bidirectional, /*batch_first=*/false);
    const at::Tensor y = std::get<0>(out);
    y.backward(at::ones_like(y));
  }
};

Lstm any_lstm(test::Draw& draw) {
  const auto dtype = draw.integer(0, 3) == 0 ? at::kBFloat16 : at::kFloat;
  const bool large = draw.coin();
  return {draw.integer(2, 20),
          draw.integer(8, 32),
          large ? 64 * draw.integer(1, 4) : draw.integer(16, 300),
          large ? 64 * draw.integer(1, 4) : draw.integer(16, 300),
          draw.coin(),
          draw.coin(),
          dtype};
}

TEST(DryRunRecurrent, MemoryIsThatOfTheKernel) {
  test::Draw draw(7);
  for (int round = 0; round < 12; ++round) {
    const auto lstm = any_lstm(draw);
    const auto step = [&](const Communicator& world) { lstm.step(world); };
    const auto predicted = dry_run({.ranks = 1, .number = 1}, step);
    DryRunReport measured;
    run_local(1, [&](const Communicator& world) {
      const StepRecorder recorder;
      step(world);
      measured = recorder.report(world);
    });
    EXPECT_NEAR(static_cast<double>(predicted.peak.bytes) / static_cast<double>(measured.peak.bytes), 1,
                lstm.dtype == at::kFloat ? 0.01 : 0.05)
        << lstm.steps << " steps of " << lstm.rows << " rows, " << lstm.input << " to " << lstm.hidden << " "
        << lstm.dtype << (lstm.bidirectional ? " both ways" : "") << (lstm.biases ? " biases" : "");
  }
}

TEST(DryRunRecurrent, FlopsAreThoseOfTheProducts) {
  const Lstm lstm{5, 16, 64, 128, true, false, at::kFloat};
  const auto report = dry_run({.ranks = 1}, [&](const Communicator& world) { lstm.step(world); });
  std::int64_t flops = 0;
  for (const auto& [name, count] : report.operators) flops += count.flops;
  EXPECT_EQ(flops, 3 * 2 * 5 * 16 * 4 * 128 * (64 + 128));
}

}  // namespace
}  // namespace dry
