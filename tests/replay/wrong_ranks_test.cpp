// Flipped bits of one rank that change a gradient are found, and the rank is named.
#include <gtest/gtest.h>

#include <cstdio>

#include "dtensor/bit_identical.h"
#include "dtensor/random.h"
#include "replay/faults.h"
#include "support/data.h"
#include "train/bits/rank_check.h"
#include "train/data/hash.h"
#include "train/model/plan.h"
#include "train/run.h"

namespace dtensor::test {
namespace {

train::Options options_of(train::MeshShape mesh) {
  train::Options o;
  o.bit_identical = true;
  o.mesh = mesh;
  o.hidden = 16, o.layers = 1, o.batch = 4, o.seq = 8, o.lr = 1e-2;
  o.data = {data_path("oracles/transformer.json")};
  return o;
}

const train::Corpus& corpus() {
  static const train::Corpus text = train::Corpus::read(options_of({}).data, 8);
  return text;
}

// A model whose parameters stay the same, and the check of its steps.
class CheckedModel {
 public:
  CheckedModel(const Communicator& world, const train::Options& options)
      : options_(options),
        mesh_(train::make_mesh(world, *options_.mesh)),
        model_(train::meta_config(options_)),
        job_{.options = options_, .corpus = corpus(), .model = model_, .batch_mesh = mesh_, .mesh = mesh_} {
    train::distribute(model_, mesh_, options_);
    manual_seed(mesh_, 1);
    model_.reset();
    job_.pieces = {options_.batch};
    optimizer_.emplace(model_.named_parameters(), train::OptimizerOptions{});
    for (const auto& part : parts()) saved_.push_back(part.clone());
    check_.emplace(job_, *optimizer_);
    clean_ = gradients_of([&] { train::run_batch(job_, batch_); });
  }

  // The rank that the check names after a step with this fault (of this rank, if any), and whether the gradients of the
  // step changed.
  std::pair<train::WrongRanks, bool> step(const std::optional<Fault>& fault) {
    restore();
    std::optional<FaultInjection> injection;
    if (fault) injection.emplace(*fault);
    const auto gradients = gradients_of([&] { check_->run(batch_); });
    injection.reset();
    return {check_->before_update(), gradients != clean_};
  }

  std::int64_t operators_of_pass() {
    std::int64_t count = 0;
    const EventListener listener([&](const Event&) { ++count; }, {Event::Kind::op});
    gradients_of([&] { train::run_batch(job_, batch_); });
    return count;
  }

  at::Tensor parameter(std::uint64_t draw) { return parts().at(draw % saved_.size()); }

 private:
  std::vector<at::Tensor> parts() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all;
    for (const auto& [name, p] : model_.named_parameters()) all.push_back(DTensor(*p).to_local());
    return all;
  }

  void restore() {
    const at::NoGradGuard no_grad;
    const auto own = parts();
    for (std::size_t i = 0; i < own.size(); ++i) own[i].copy_(saved_[i]);
  }

  std::vector<std::string> gradients_of(const std::function<void()>& run) {
    const BitIdentical scope;
    run();
    std::vector<std::string> hashes;
    for (const auto& [name, p] : model_.named_parameters()) {
      hashes.push_back(BitIdentical::content_hash(p->grad()));
      p->mutable_grad().reset();
    }
    return hashes;
  }

  train::Options options_;
  DeviceMesh mesh_;
  train::Gpt model_;
  train::Job job_;
  std::optional<train::Optimizer> optimizer_;
  std::optional<train::RankCheck> check_;
  std::vector<at::Tensor> saved_;
  std::vector<std::string> clean_;
  train::Batch batch_ = corpus().batch(3, 0, {options_.batch, options_.seq});
};

struct Counts {
  int harmful = 0, found = 0;
};

// Draws the faults of a rank and throws unless each that changes a gradient is found, and all that are found are named.
Counts inject_faults(const Communicator& world, train::MeshShape mesh, int faults, std::uint64_t seed) {
  CheckedModel model(world, options_of(mesh));
  const auto operators = static_cast<std::uint64_t>(model.operators_of_pass());
  Counts counts;
  for (int i = 0; i < faults; ++i) {
    const auto draw = [&](std::uint64_t n) { return train::hash64(seed, static_cast<std::uint64_t>(i) * 8 + n); };
    const auto rank = static_cast<std::int64_t>(draw(0) % static_cast<std::uint64_t>(world.size()));
    const auto kind = draw(1) % 5;
    Fault fault{.number = static_cast<std::int64_t>(draw(2) % (2 * operators)), .draw = draw(3)};
    // In the first pass: a bit that flips after its hash looks like a fault of the receivers.
    if (kind == 0) fault.target = Fault::Target::contribution, fault.number %= static_cast<std::int64_t>(operators / 2);
    if (kind == 1) fault.target = Fault::Target::other, fault.other = model.parameter(draw(4));
    const auto [wrong, changed] = model.step(world.rank() == rank ? std::optional(fault) : std::nullopt);
    const auto what = c10::str(mesh.str(), ", fault ", i, " of kind ", kind, " on rank ", rank, " after ", fault.number,
                               " of ", operators, " operators: ");
    TORCH_CHECK(!changed || !wrong.ranks.empty(), what, "was not found");
    TORCH_CHECK(wrong.ranks.empty() || (wrong.certain && wrong.ranks == std::vector<std::int64_t>{rank}), what,
                "got: ", wrong.str());
    counts.harmful += changed ? 1 : 0, counts.found += wrong.ranks.empty() ? 0 : 1;
    if (i % 8 == 0)
      TORCH_CHECK(model.step({}).first.ranks.empty(), what, "a step without a fault was reported after it");
  }
  return counts;
}

void expect_faults_found(int ranks, train::MeshShape mesh, int faults, std::uint64_t seed) {
  Counts counts;
  EXPECT_NO_THROW(run_local(ranks, [&](const Communicator& world) {
    const auto own = inject_faults(world, mesh, faults, seed);
    if (world.rank() == 0) counts = own;
  }));
  std::printf("%s: %d faults, %d changed the gradients of the step, %d were found\n", mesh.str().c_str(), faults,
              counts.harmful, counts.found);
  EXPECT_GT(counts.harmful, faults / 5) << mesh.str();
}

TEST(WrongRanks, EachFlippedBitThatChangesAGradientIsFoundAndItsRankNamed) {
  expect_faults_found(4, {.shard = 4}, 150, 1);
  expect_faults_found(3, {.shard = 3}, 100, 2);
  expect_faults_found(4, {.replicate = 2, .shard = 2}, 100, 3);
  expect_faults_found(2, {.shard = 2}, 80, 4);
  expect_faults_found(4, {.shard = 2, .tp = 2}, 70, 5);
}

// Wrong in the same way in each pass, so that it agrees with itself.
TEST(WrongRanks, ARankThatIsAlwaysWrongIsNamedAmongThree) {
  for (std::uint64_t draw = 0; draw < 20; ++draw) {
    const Fault fault{.number = static_cast<std::int64_t>(train::hash64(6, draw) % 60),
                      .draw = train::hash64(7, draw),
                      .always = true};
    const auto faulty = static_cast<std::int64_t>(draw % 3);
    EXPECT_NO_THROW(run_local(3, [&](const Communicator& world) {
      CheckedModel model(world, options_of({.shard = 3}));
      const auto [wrong, changed] = model.step(world.rank() == faulty ? std::optional(fault) : std::nullopt);
      TORCH_CHECK(!changed || !wrong.ranks.empty(), "draw ", draw, " was not found");
      TORCH_CHECK(wrong.ranks.empty() || wrong.ranks == std::vector<std::int64_t>{faulty}, "draw ", draw, " on rank ",
                  faulty, ": ", wrong.str());
    }));
  }
}

TEST(WrongRanks, OfTwoRanksOneThatIsAlwaysWrongIsNotDistinguished) {
  run_local(2, [&](const Communicator& world) {
    CheckedModel model(world, options_of({.shard = 2}));
    const Fault fault{.number = 5, .draw = 3, .always = true};
    const auto [wrong, changed] = model.step(world.rank() == 1 ? std::optional(fault) : std::nullopt);
    EXPECT_TRUE(changed);
    EXPECT_EQ(wrong.ranks, (std::vector<std::int64_t>{0, 1}));
    EXPECT_FALSE(wrong.certain);
  });
}

TEST(WrongRanks, StepsWithoutFaultsAreNotReported) {
  for (const train::MeshShape& mesh :
       std::vector<train::MeshShape>{{.shard = 3}, {.replicate = 2, .shard = 2}, {.shard = 2, .tp = 2}, {.cp = 2}}) {
    auto options = options_of(mesh);
    options.steps = 40, options.check_ranks = 1, options.dropout = 0.1;
    EXPECT_NO_THROW(run_local(static_cast<int>(mesh.size()), [&](const Communicator& world) {
      train::train_on_mesh(world, options, corpus(), {});
    })) << mesh.str();
  }
}

// The check changes neither the steps nor their random numbers.
TEST(WrongRanks, ACheckedRunHasTheBitsOfAnUncheckedOne) {
  std::vector<std::string> hashes;
  for (const std::int64_t every : {0, 2}) {
    auto options = options_of({.shard = 2});
    options.steps = 4, options.check_ranks = every, options.dropout = 0.1;
    run_local(2, [&](const Communicator& world) {
      const auto records = train::train_on_mesh(world, options, corpus(), {});
      if (world.rank() == 0) hashes.push_back(records.back().content_hash);
    });
  }
  EXPECT_EQ(hashes.at(0), hashes.at(1));
}

// Runs three steps. In the second a bit of a result flips on rank 1.
std::vector<train::StepRecord> run_with_fault(bool stop) {
  auto options = options_of({.shard = 3});
  options.steps = 3, options.check_ranks = 2, options.stop_on_wrong_rank = stop;
  std::vector<train::StepRecord> records;
  run_local(3, [&](const Communicator& world) {
    std::optional<FaultInjection> injection;
    const auto inject = [&](const train::StepRecord& record) {
      injection.reset();
      if (record.step == 0 && world.rank() == 1) injection.emplace(Fault{.number = 20, .draw = 7});
    };
    auto own = train::train_on_mesh(world, options, corpus(), inject);
    if (world.rank() == 0) records = std::move(own);
  });
  return records;
}

TEST(WrongRanks, AreReportedOrStopTheRun) {
  const auto records = run_with_fault(false);
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].wrong_ranks, "");
  EXPECT_EQ(records[1].wrong_ranks.find("rank 1 computed wrong numbers, first in lm_head, backward"), 0U)
      << records[1].wrong_ranks;
  EXPECT_EQ(records[2].wrong_ranks, "");
  try {
    run_with_fault(true);
    FAIL() << "the run went on";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("step 2: rank 1 computed wrong numbers"), std::string::npos)
        << error.what();
  }
}

// Both passes use the changed parameter, so only its hash shows it.
TEST(WrongRanks, AChangedParameterIsFoundInTheMemoryOfItsRank) {
  run_local(3, [](const Communicator& world) {
    CheckedModel model(world, options_of({.shard = 3}));
    const Fault fault{.target = Fault::Target::other, .draw = 9, .other = model.parameter(1)};
    const auto [wrong, changed] = model.step(world.rank() == 2 ? std::optional(fault) : std::nullopt);
    EXPECT_EQ(wrong.str(), "rank 2 computed wrong numbers, first in the memory of parameters and optimizer states");
  });
}

}  // namespace
}  // namespace dtensor::test
