// A recorded step is repeated on other meshes and compared; a corrupted result is named.
#include <gtest/gtest.h>

#include "dtensor/checkpoint.h"
#include "dtensor/comm.h"
#include "replay/faults.h"
#include "support/data.h"
#include "support/folder.h"
#include "train/bits/hashes.h"
#include "train/data/hash.h"
#include "train/run.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kSteps = 3;

train::Options base_options() {
  train::Options o;
  o.bit_identical = true;
  o.hidden = 32, o.layers = 2, o.batch = 4, o.seq = 32, o.steps = kSteps, o.warmup = 2, o.lr = 1e-2;
  o.data = {data_path("oracles/transformer.json")};
  return o;
}

const train::Corpus& corpus() {
  static const train::Corpus text = train::Corpus::read(base_options().data, base_options().seq);
  return text;
}

std::vector<train::StepRecord> run(int ranks, const train::Options& options, const train::OnStep& on_step = {}) {
  std::vector<train::StepRecord> records;
  run_local(ranks, [&](const Communicator& world) {
    auto own = train::train_on_mesh(world, options, corpus(), on_step);
    if (world.rank() == 0) records = std::move(own);
  });
  return records;
}

train::Options recorded_in(const Folder& folder, train::MeshShape mesh) {
  auto o = base_options();
  o.mesh = mesh;
  o.hashes = folder / "hashes.jsonl", o.operator_hashes = true;
  o.save = folder / "run", o.save_every = 1, o.keep = 10;
  return o;
}

train::Options replay_of(const train::Options& recorded, std::int64_t step, train::MeshShape mesh) {
  auto o = base_options();
  o.dtype = recorded.dtype, o.dropout = recorded.dropout, o.optimizer = recorded.optimizer;
  o.mesh = mesh;
  o.hashes = recorded.hashes, o.replay = o.steps = step;
  o.load = train::checkpoint_before(recorded.save, step);
  return o;
}

void expect_equal(const std::vector<train::StepRecord>& records, const std::string& what) {
  ASSERT_EQ(records.size(), 1U) << what;  // The checkpoint before it was taken.
  EXPECT_EQ(records[0].difference, "") << what;
  EXPECT_GT(records[0].compared, 200) << what;
}

TEST(Replay, OfAMeshIsEqualOnOtherMeshes) {
  for (const train::MeshShape& mesh : std::vector<train::MeshShape>{{.shard = 4}, {.replicate = 2, .tp = 2}}) {
    const Folder folder;
    const auto recorded = recorded_in(folder, mesh);
    run(4, recorded);
    for (const std::int64_t step : {2, 3}) {
      expect_equal(run(1, replay_of(recorded, step, {})), mesh.str() + " on one device");
      expect_equal(run(2, replay_of(recorded, step, {.tp = 2})), mesh.str() + " on tp=2");
      expect_equal(run(3, replay_of(recorded, step, {.shard = 3})), mesh.str() + " on shard=3");
      expect_equal(run(2, replay_of(recorded, step, {.cp = 2})), mesh.str() + " on cp=2");
    }
  }
}

TEST(Replay, WithDropoutAndMuonIsEqual) {
  const Folder folder;
  auto recorded = recorded_in(folder, {.shard = 2, .tp = 2});
  recorded.dropout = 0.1, recorded.optimizer = "muon";
  run(4, recorded);
  expect_equal(run(1, replay_of(recorded, 3, {})), "one device");
  expect_equal(run(2, replay_of(recorded, 3, {.shard = 2})), "shard=2");
}

// A pipeline records gradients and parameters.
TEST(Replay, OfAPipelineIsEqualOnOneDevice) {
  const Folder folder;
  auto recorded = recorded_in(folder, {.pp = 2});
  recorded.operator_hashes = false, recorded.microbatches = 2;
  run(2, recorded);
  const auto records = run(1, replay_of(recorded, 3, {}));
  EXPECT_EQ(records.at(0).difference, "");
  EXPECT_GT(records.at(0).compared, 20);
}

// Flips a bit on one rank in step 2, which the last step then trains on.
std::string record_with_fault(const train::Options& recorded, int faulty, const Fault& fault) {
  std::string where;
  run_local(static_cast<int>(recorded.mesh->size()), [&](const Communicator& world) {
    std::optional<FaultInjection> injection;
    const auto inject = [&](const train::StepRecord& record) {
      if (world.rank() != faulty) return;
      if (record.step == 0) injection.emplace(fault);
      if (record.step != 1) return;
      where = injection->where();
      injection.reset();
    };
    train::train_on_mesh(world, recorded, corpus(), inject);
  });
  return where;
}

TEST(Replay, NamesTheOperatorAndModuleOfACorruptedResult) {
  int named = 0, backward = 0;
  for (std::uint64_t draw = 0; draw < 12; ++draw) {
    const Folder folder;
    const auto recorded =
        recorded_in(folder, draw % 2 == 0 ? train::MeshShape{.shard = 4} : train::MeshShape{.shard = 2, .tp = 2});
    // A bit of the least significant byte: an infinite loss would end the run before the step is recorded.
    const Fault fault{.number = static_cast<std::int64_t>(train::hash64(1, draw) % 90),
                      .draw = train::hash64(2, draw) & ~(std::uint64_t{0xff} << 40)};
    const auto where = record_with_fault(recorded, static_cast<int>(draw % 4), fault);
    ASSERT_FALSE(where.empty()) << "draw " << draw;
    const auto records = run(1, replay_of(recorded, 2, {}));
    EXPECT_EQ(records.at(0).difference.find(where), 0U)
        << "draw " << draw << ": flipped " << where << ", named " << records.at(0).difference;
    const bool in_backward = where.find(", backward, ") != std::string::npos;
    named += where.find("in layers.") == 0 ? 1 : 0, backward += in_backward && where.find("in layers.") == 0 ? 1 : 0;
  }
  EXPECT_GE(named, 6);  // Most operators belong to a block.
  EXPECT_GE(backward, 2);
}

// Few results are equal on both ranks, as that of layers.0.mlp.down_proj. If the hash of rank 0 were recorded for both,
// the next operator whose result is split would be named.
TEST(Replay, NamesTheOperatorOfAReplicaThatDiffers) {
  int replicas = 0;
  for (std::int64_t number = 1; number < 40; number += 6) {
    const Folder folder;
    const auto recorded = recorded_in(folder, {.tp = 2});
    const auto where = record_with_fault(recorded, /*faulty=*/1, {.number = number, .draw = 1});
    const auto difference = run(1, replay_of(recorded, 2, {})).at(0).difference;
    EXPECT_EQ(difference.find(where), 0U) << "flipped " << where << ", named " << difference;
    replicas += difference.find("(rank 1: ") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(replicas, 1);
}

// An equal hash of rank 0 does not hide that of another rank.
TEST(Replay, RecordsRanksThatDiffer) {
  const Folder folder;
  train::Options options;
  options.hashes = folder / "hashes.jsonl", options.mesh = train::MeshShape{.tp = 3};
  run_local(3, [&](const Communicator& world) {
    train::HashRecorder recorder(options, world);
    recorder.add("equal", std::string(64, 'a'));
    recorder.add("of rank 1", world.rank() == 1 ? std::string(64, 'b') : "");
    recorder.add("different", std::string(64, world.rank() == 2 ? 'd' : 'c'));
    recorder.finish(1);
  });
  const train::Hashes expected = {{"equal", std::string(64, 'a')},
                                  {"of rank 1", std::string(64, 'b')},
                                  {"different", std::string(64, 'c') + " (rank 2: " + std::string(64, 'd') + ")"}};
  EXPECT_EQ(train::read_hashes(options.hashes).at(1), expected);
}

TEST(Replay, ComparesNamesThatOccurEquallyOften) {
  const train::Hashes recorded = {{"a", "1"}, {"b", "2"}, {"b", "3"}, {"c", "4"}};
  const auto same = train::compare_hashes(recorded, {{"b", "2"}, {"b", "3"}, {"a", "1"}, {"c", "4"}, {"c", "5"}});
  EXPECT_EQ(same.first, "");
  EXPECT_EQ(same.compared, 3);  // c has another number of calls.
  const auto other = train::compare_hashes(recorded, {{"a", "1"}, {"b", "2"}, {"b", "9"}, {"c", "8"}});
  EXPECT_EQ(other.first, "b (call 2 of 2): recorded 3, repeated 9");
  EXPECT_EQ(other.different, 2);
}

TEST(Replay, TakesTheNewestCheckpointBeforeTheStep) {
  const Folder folder;
  const auto recorded = recorded_in(folder, {.shard = 2});
  run(2, recorded);
  EXPECT_EQ(train::checkpoint_before(recorded.save, 3), checkpoint_of_step(recorded.save, 2));
  EXPECT_EQ(train::checkpoint_before("", 3), "");
  EXPECT_THROW(train::checkpoint_before(recorded.save, 1), train::UsageError);
}

}  // namespace
}  // namespace dtensor::test
