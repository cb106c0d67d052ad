// Sequences split over the axis cp: the curve of one device on every mesh, parameters split over shard and cp together,
// tokens counted once, and no redistribution of activations.
#include <gtest/gtest.h>

#include <map>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "mesh_run.h"
#include "train/layouts/compare.h"
#include "train/model/loss.h"
#include "train/run.h"

namespace {

using namespace train;

Options small(Dtype dtype = Dtype::float64) {
  Options o;
  o.dtype = dtype;
  o.steps = 12;
  o.batch = 4;
  o.seq = 13;  // Not divisible by the number of ranks.
  o.hidden = 16;
  o.layers = 2;
  o.warmup = 3;
  o.rope = true;
  o.kv_heads = 2;
  o.documents = true;
  return o;
}

const Corpus& corpus() {
  static const auto text = Corpus::read({}, 64);
  return text;
}

std::vector<StepRecord> run(const MeshShape& shape, Options o) {
  o.mesh = shape;
  std::vector<StepRecord> records;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    auto mine = train_on_mesh(world, o, corpus(), {});
    if (world.rank() == 0) records = std::move(mine);
  });
  return records;
}

void expect_one_device(const MeshShape& shape, const Options& o) {
  SCOPED_TRACE(shape.str());
  const auto records = run(shape, o);
  const auto comparison = compare_with_one_device(o, corpus(), records);
  EXPECT_LE(comparison.largest, 1e-9);
  EXPECT_EQ(comparison.difference.size(), static_cast<std::size_t>(o.steps));
}

TEST(ContextParallel, CurvesMatchSingleDevice) {
  const Options o = small();
  for (const MeshShape& shape : std::vector<MeshShape>{{.cp = 2},
                                                       {.cp = 3},
                                                       {.shard = 2, .cp = 2},
                                                       {.tp = 2, .cp = 2},
                                                       {.replicate = 2, .cp = 2},
                                                       {.pp = 2, .cp = 2}}) {
    expect_one_device(shape, o);
  }
}

TEST(ContextParallel, CurvesOfZigzagSequencesMatchSingleDevice) {
  Options o = small();
  o.zigzag_sequence = true;
  o.dropout = 0.1;
  for (const MeshShape& shape :
       std::vector<MeshShape>{{.cp = 2}, {.cp = 4}, {.shard = 2, .cp = 2}, {.tp = 2, .cp = 2}, {.pp = 2, .cp = 2}}) {
    expect_one_device(shape, o);
  }
  o.sequence_parallel = true;
  expect_one_device({.tp = 2, .cp = 2}, o);
}

TEST(ContextParallel, CurvesMatchSingleDeviceWithEachOption) {
  Options o = small();
  o.steps = 4;
  for (const auto& change : std::vector<std::function<void(Options&)>>{
           [](Options& x) { x.dropout = 0.2; }, [](Options& x) { x.checkpoint_activations = true; },
           [](Options& x) { x.parallel = "plain"; }, [](Options& x) { x.reshard = "2"; },
           [](Options& x) { x.grad_accum = 2; }, [](Options& x) { x.zigzag_sequence = true; },
           [](Options& x) { x.optimizer = "muon"; }}) {
    Options changed = o;
    change(changed);
    expect_one_device({.shard = 2, .cp = 2}, changed);
  }
  o.sequence_parallel = o.loss_parallel = true;
  expect_one_device({.tp = 2, .cp = 2}, o);
}

// Heads that predict the tokens after the next one as well: their targets cross the boundary between two ranks.
TEST(ContextParallel, SeveralTokensArePredicted) {
  Options o = small();
  o.steps = 5, o.predict_tokens = 3;
  for (const bool zigzag : {false, true}) {
    o.zigzag_sequence = zigzag;
    for (const MeshShape& shape : std::vector<MeshShape>{{.cp = 3}, {.shard = 2, .cp = 2}, {.pp = 2, .cp = 2}}) {
      expect_one_device(shape, o);
    }
  }
  o.loss_parallel = o.sequence_parallel = true;
  expect_one_device({.tp = 2, .cp = 2}, o);
}

// HSDP 4 (DP 2, CP 2, EP 4) + TP 2: two replicas, each sharded over two parts of the sequence.
TEST(ContextParallel, ExpertsOnTheLayoutOfTheParityRuns) {
  Options o = small();
  o.steps = 100;
  o.warmup = 10;
  o.experts.emplace().ep = 4;
  expect_one_device({.replicate = 2, .tp = 2, .cp = 2}, o);
  o.steps = 4;
  o.zigzag_sequence = true;
  expect_one_device({.replicate = 2, .tp = 2, .cp = 2}, o);
  o.experts->etp = 2;
  o.experts->ep = 2;
  expect_one_device({.shard = 2, .tp = 2, .cp = 2}, o);
}

// Peak memory of forward and backward on one of two ranks, beyond what was allocated before.
std::int64_t peak_of_a_step(const Options& o) {
  std::int64_t peak = 0;
  dtensor::run_local(2, [&](dtensor::Communicator world) {
    const auto mesh = make_mesh(world, {.cp = 2});
    GptConfig config = gpt_config(o);
    config.tensor = config.tensor.device(at::kMeta);
    Gpt model(config);
    distribute(model, mesh, o);
    dtensor::manual_seed(mesh, 1);
    model.reset();
    const auto batch = corpus().batch(0, 0, {o.batch, o.seq, o.documents});
    const auto ids = distribute_tensor(batch.ids, mesh, batch_placements(o));
    const auto targets = distribute_tensor(batch.targets, mesh, batch_placements(o));
    at::Tensor documents;
    if (o.documents) documents = distribute_tensor(batch.documents, mesh, rows_placements());
    const dtensor::MemoryTimeline memory;
    token_losses(model(ids, documents).logits, targets).backward();
    if (world.rank() == 0) peak = memory.peak().bytes;
  });
  return peak;
}

// Positions determine where documents begin, so no rank allocates a mask of all pairs of tokens.
TEST(ContextParallel, DocumentsNeedNoQuadraticMask) {
  Options o = small(Dtype::float32);
  o.batch = 1, o.seq = 4096, o.layers = 1, o.zigzag_sequence = true;
  const auto with = peak_of_a_step(o);
  o.documents = false;
  const auto without = peak_of_a_step(o);
  EXPECT_LE(with - without, o.seq * o.seq / 16) << with << " against " << without;
}

struct Moved {
  std::map<std::string, int> calls;           // For example "all_gather cp".
  std::map<std::string, std::int64_t> bytes;  // The same keys.
};

Moved moved_in_a_step(const MeshShape& shape, const Options& o) {
  Moved moved;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    const auto mesh = make_mesh(world, shape);
    GptConfig config = gpt_config(o);
    config.tensor = config.tensor.device(at::kMeta);
    Gpt model(config);
    const auto units = distribute(model, mesh, o);
    dtensor::manual_seed(mesh, 1);
    model.reset();
    const auto batch = corpus().batch(0, 0, {o.batch, o.seq, o.documents});
    const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, batch_placements()); };
    const at::Tensor ids = place(batch.ids), targets = place(batch.targets);
    for (int step = 0; step < 3; ++step) {
      Moved mine;
      const dtensor::EventListener listener(
          [&](const dtensor::Event& e) {
            ++mine.calls[e.name + " " + e.axis];
            mine.bytes[e.name + " " + e.axis] += e.bytes;
          },
          {dtensor::Event::Kind::collective});
      token_loss(model(ids).logits.front(), targets).backward();
      if (world.rank() == 0) moved = mine;
    }
  });
  return moved;
}

// Units are gathered and reduced over shard and cp in one collective; gradients are not reduced over cp again. Only the
// loss and attention communicate over cp besides.
TEST(ContextParallel, UnitsAreGatheredAndReducedOverShardAndCpTogether) {
  Options o = small();
  o.layers = 2;
  o.documents = o.rope = false;
  const auto moved = moved_in_a_step({.shard = 2, .cp = 2}, o);
  const int blocks = 2;
  EXPECT_EQ(moved.calls.at("all_gather shard_cp"), (blocks + 1) + (blocks - 1));
  EXPECT_EQ(moved.calls.at("reduce_scatter shard_cp"), blocks + 1);
  for (const auto& [name, count] : moved.calls) {
    if (name != "reduce_scatter shard_cp") {
      EXPECT_EQ(name.find("reduce_scatter"), std::string::npos) << name << count;
    }
  }
}

}  // namespace
