// What a step with --check-ranks receives more than another step: a pass, the parameters of the next place, and hashes.
#include <gtest/gtest.h>

#include "dtensor/bit_identical.h"
#include "dtensor/events.h"
#include "dtensor/random.h"
#include "support/data.h"
#include "train/bits/hashes.h"
#include "train/job.h"
#include "train/model/plan.h"
#include "train/run.h"

namespace dtensor::test {
namespace {

struct Received {
  std::int64_t calls = 0, bytes = 0;
};

// Counts the collectives of this thread while it lives.
class Counter {
 public:
  Received take() { return std::exchange(received_, {}); }

 private:
  Received received_;
  EventListener listener_{[this](const Event& event) { ++received_.calls, received_.bytes += event.bytes; },
                          {Event::Kind::collective}};
};

train::Options options_of(train::MeshShape mesh) {
  train::Options o;
  o.bit_identical = true, o.mesh = mesh;
  o.hidden = 16, o.layers = 1, o.batch = 4, o.seq = 8, o.steps = 4, o.check_ranks = 2;
  o.data = {data_path("oracles/transformer.json")};
  return o;
}

const train::Corpus& corpus() {
  static const train::Corpus text = train::Corpus::read(options_of({}).data, 8);
  return text;
}

// Forward and backward alone. Shards differ in size, so bytes are those of each place.
struct Pass {
  std::int64_t calls = 0;
  std::vector<std::int64_t> received, parameters;  // bytes by place
};

std::int64_t shard_bytes(const at::Tensor& parameter, std::int64_t place, std::int64_t places) {
  const auto rows = parameter.size(0), chunk = (rows + places - 1) / places;
  return std::clamp(rows - place * chunk, std::int64_t{0}, chunk) * (parameter.numel() / rows) *
         static_cast<std::int64_t>(parameter.element_size());
}

Pass measure_pass(const Communicator& world, const train::Options& options) {
  const auto mesh = train::make_mesh(world, *options.mesh);
  train::Gpt model(train::meta_config(options));
  train::Job job{.options = options, .corpus = corpus(), .model = model, .batch_mesh = mesh, .mesh = mesh};
  train::distribute(model, mesh, options);
  manual_seed(mesh, 1);
  model.reset();
  job.pieces = {options.batch};
  const BitIdentical scope;
  Counter counter;
  train::run_batch(job, corpus().batch(3, 0, {options.batch, options.seq}));
  const Received own = counter.take();
  Pass pass{.calls = own.calls};
  for (const auto& text : train::gather_texts(world, std::to_string(own.bytes))) {
    pass.received.push_back(std::stoll(text));
    auto& bytes = pass.parameters.emplace_back();
    for (const at::Tensor& p : model.parameters()) bytes += shard_bytes(p, std::ssize(pass.received) - 1, world.size());
  }
  return pass;
}

// Of each step on this rank.
std::vector<Received> measure_steps(const Communicator& world, const train::Options& options) {
  std::vector<Received> steps;
  Counter counter;
  train::train_on_mesh(world, options, corpus(), [&](const train::StepRecord&) { steps.push_back(counter.take()); });
  return steps;
}

// The first check creates the copy of the model, so the second is compared with the step before it.
TEST(RankCheckCollectives, ArePassParametersAndHashes) {
  for (const int ranks : {2, 3}) {
    run_local(ranks, [&](const Communicator& world) {
      const auto options = options_of({.shard = ranks});
      const auto pass = measure_pass(world, options);
      const auto steps = measure_steps(world, options);
      const auto place = static_cast<std::size_t>((world.rank() + 1) % ranks);
      const std::int64_t lengths = 8 * (ranks - 1), hashes = 2 * 64 * (ranks - 1);
      EXPECT_EQ(steps[3].bytes - steps[2].bytes, pass.received[place] + pass.parameters[place] + lengths + hashes);
      EXPECT_EQ(steps[3].calls - steps[2].calls, pass.calls + /*parameters*/ 1 + /*texts*/ 2);
      EXPECT_GT(pass.calls, 10);
    });
  }
}

// Between checks ranks exchange only whether their memory changed: an empty text.
TEST(RankCheckCollectives, BetweenChecksAreTwoCalls) {
  run_local(2, [](const Communicator& world) {
    auto options = options_of({.shard = 2});
    const auto checked = measure_steps(world, options);
    options.check_ranks = 0;
    const auto unchecked = measure_steps(world, options);
    EXPECT_EQ(checked[2].calls - unchecked[2].calls, 2);
    EXPECT_EQ(checked[2].bytes - unchecked[2].bytes, 8);
  });
}

}  // namespace
}  // namespace dtensor::test
