// A series of checkpoints of a run: which are kept, which is loaded, which are skipped.
#include "dtensor/checkpoint.h"

#include <gtest/gtest.h>
// Include after GoogleTest.
#include <rapidcheck.h>

#include <limits>

#include "checkpoint/folder.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

struct Trained {
  at::Tensor w;
  std::int64_t step = 0;
  Checkpoint state;

  explicit Trained(const DeviceMesh& mesh) : w(distribute_tensor(at::zeros({7, 3}), mesh, {Shard(0)})) {
    state.add("w", w).add("step", step);
  }
  void go_to(std::int64_t to) {
    step = to;
    w.fill_(static_cast<double>(to));
  }
  bool is_at(std::int64_t at) const {
    return step == at && at::equal(DTensor(w).full_tensor(), at::full({7, 3}, static_cast<double>(at)));
  }
};

// Runs fn(run, series) on two ranks.
void on_series(const std::string& root, std::int64_t keep, const std::function<void(Trained&, CheckpointSeries&)>& fn) {
  run_local(2, [&](Communicator world) {
    Trained run(init_device_mesh(world, at::kCPU, {2}));
    CheckpointSeries series(root, world, keep);
    fn(run, series);
  });
}

void save_steps(const std::string& root, std::int64_t keep, const Steps& steps, bool background = false) {
  on_series(root, keep, [&](Trained& run, CheckpointSeries& series) {
    for (const std::int64_t step : steps) {
      run.go_to(step);
      background ? series.save_async(run.state, step, kQuick) : series.save(run.state, step, kQuick);
      run.go_to(0);  // a copy is saved in the background
    }
    series.finish();
  });
}

void damage(const std::string& root, std::int64_t step, const std::string& file = "model.safetensors") {
  fs::resize_file(checkpoint_of_step(root, step) + "/" + file, 40);
}

// Returns the step that three ranks load, or -1 for none, and the number of skipped checkpoints.
std::pair<std::int64_t, std::size_t> newest(const std::string& root) {
  std::pair<std::int64_t, std::size_t> result{-1, 0};
  run_local(3, [&](Communicator world) {
    Trained run(init_device_mesh(world, at::kCPU, {3}));
    const LoadedCheckpoint loaded = load_newest(run.state, root, world);
    EXPECT_TRUE(run.is_at(run.step));  // step 0 if there is no checkpoint
    if (world.rank() == 0) result = {loaded.path.empty() ? -1 : run.step, loaded.skipped_checkpoints.size()};
  });
  return result;
}

TEST(Series, KeepsTheNewestAndLinksTheLatest) {
  for (const bool background : {false, true}) {
    const Folder folder;
    save_steps(folder / "run", 2, {5, 10, 15, 20}, background);
    EXPECT_EQ(checkpoint_steps(folder / "run"), (Steps{20, 15}));
    EXPECT_EQ(fs::read_symlink(folder / "run/latest"), "step-00000020");
    EXPECT_TRUE(verify_checkpoint(folder / "run/latest").empty());
    EXPECT_EQ(newest(folder / "run"), std::pair(std::int64_t{20}, std::size_t{0}));
    EXPECT_EQ(newest(folder / "run/latest").first, 20);
    EXPECT_FALSE(fs::exists(folder / "run.lock"));
  }
}

// For any saved and damaged checkpoints, the newest undamaged one is loaded.
TEST(Series, NewestUndamagedCheckpointIsLoaded) {
  EXPECT_TRUE(rc::check("newest undamaged", [] {
    const Folder folder;
    const auto count = *rc::gen::inRange<std::int64_t>(0, 6), keep = *rc::gen::inRange<std::int64_t>(1, 5);
    Steps steps;
    for (std::int64_t i = 1; i <= count; ++i) steps.push_back(10 * i);
    if (count > 0) save_steps(folder / "run", keep, steps);
    const Steps there = checkpoint_steps(folder / "run");
    RC_ASSERT(there.size() == static_cast<std::size_t>(std::min(count, keep)));
    std::size_t damaged = 0;
    while (damaged < there.size() && *rc::gen::arbitrary<bool>()) {
      damage(folder / "run", there[damaged++], *rc::gen::element("model.safetensors", "checkpoint.json"));
    }
    if (damaged == there.size() && damaged > 0) {
      RC_ASSERT_THROWS(newest(folder / "run"));
    } else {
      const auto expected = there.empty() ? -1 : there[damaged];
      RC_ASSERT(newest(folder / "run") == std::pair(expected, damaged));
    }
  }));
}

TEST(Series, DamagedCheckpointIsRemovedBeforeGoodOnes) {
  const Folder folder;
  save_steps(folder / "run", 2, {10, 20});
  damage(folder / "run", 20);
  on_series(folder / "run", 2, [](Trained& run, CheckpointSeries& series) {
    const LoadedCheckpoint loaded = series.load_newest(run.state);
    EXPECT_TRUE(run.is_at(10));
    ASSERT_EQ(loaded.skipped_checkpoints.size(), 1U);
    EXPECT_NE(loaded.skipped_checkpoints[0].find("step-00000020"), std::string::npos);
    EXPECT_EQ(loaded.skipped_checkpoints[0].find('\n'), std::string::npos);
    run.go_to(15);
    series.save(run.state, 15, kQuick);
  });
  EXPECT_EQ(checkpoint_steps(folder / "run"), (Steps{15, 10}));
}

// A mismatched model is not damage: no older checkpoint is loaded instead.
TEST(Series, MismatchedModelIsAnError) {
  const Folder folder;
  save_steps(folder / "run", 2, {10, 20});
  const auto errors = errors_on(2, [&](const Communicator& world) {
    at::Tensor other = at::zeros({8});
    Checkpoint state;
    state.add("w", other);
    EXPECT_THROW(load_newest(state, folder / "run", world), c10::ValueError);
    load_newest(state, folder / "run", world);
  });
  expect_error(errors, {"step-00000020", "'w' has sizes"});
}

TEST(Series, RefusesSecondProgramAndCheckpointFolder) {
  const Folder folder;
  on_series(folder / "run", 2, [&](Trained& run, CheckpointSeries&) {
    const Communicator world = DTensor(run.w).mesh().world();
    expect_error({errors_on(1, [&](const Communicator& own) { CheckpointSeries(folder / "run", own, 2); })},
                 {"another save to"});
    world.barrier();
  });
  run_local(1, [&](Communicator world) { save_state(folder / "c", world, {{"w", at::ones({2})}}, {}, kQuick); });
  expect_error(errors_on(2, [&](const Communicator& world) { CheckpointSeries(folder / "c", world, 2); }),
               {"is a checkpoint itself"});
  expect_error(errors_on(2, [&](const Communicator& world) { CheckpointSeries(folder / "x", world, 0); }),
               {"expected keep >= 1, got 0"});
}

TEST(Series, LeftoversOfAKilledRunAreRemoved) {
  const Folder folder;
  save_steps(folder / "run", 2, {10, 20});
  fs::create_directories(folder / "run/step-00000030.saving-host-9-0");
  std::ofstream(folder / "run/step-00000030.saving-host-9-0/model.safetensors") << "half";
  std::ofstream(folder / "run/step-00000030.lock") << "";
  fs::create_symlink("step-00000030", folder / "run/latest.host-9-1");
  std::ofstream(folder / "run/notes.txt") << "mine";
  save_steps(folder / "run", 2, {25});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "run")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"latest", "notes.txt", "step-00000020", "step-00000025"}));
}

// A run makes temporary links with similar names.
TEST(Series, ForeignFilesNamedLatestStay) {
  const Folder folder;
  save_steps(folder / "run", 1, {10});
  for (const char* name : {"latest.txt", "latest.lock", "latest.host-9-1"}) {
    std::ofstream(folder / "run/" + name) << "mine";
  }
  save_steps(folder / "run", 1, {20});
  for (const char* name : {"latest.txt", "latest.lock", "latest.host-9-1"}) {
    EXPECT_TRUE(fs::exists(folder / "run/" + name)) << name;
  }
}

// Steps may be nanoseconds since 1970. Folder names with other zero padding or beyond int64 are not steps.
TEST(Series, StepsMayBeAnyInt64) {
  const Folder folder;
  const std::int64_t now = 1'790'000'000'000'000'000, most = std::numeric_limits<std::int64_t>::max();
  fs::create_directories(folder / "run/step-0000000030");
  fs::create_directories(folder / "run/step-9999999999999999999");
  save_steps(folder / "run", 2, {10, now, now + 1, most});
  EXPECT_EQ(checkpoint_steps(folder / "run"), (Steps{most, now + 1}));
  EXPECT_EQ(newest(folder / "run").first, most);
}

// Steps may be links to folders on another disk: the link is removed, its target stays.
TEST(Series, LinkedStepsAreRotated) {
  const Folder folder;
  save_steps(folder / "run", 3, {10, 20, 30});
  fs::rename(folder / "run/step-00000010", folder / "far");
  fs::create_directory_symlink(folder / "far", folder / "run/step-00000010");
  fs::rename(folder / "run/step-00000020", folder / "lost");
  fs::create_directory_symlink(folder / "nowhere", folder / "run/step-00000020");
  save_steps(folder / "run", 1, {40});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "run")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"latest", "step-00000040"}));
  EXPECT_TRUE(verify_checkpoint(folder / "far").empty());
}

}  // namespace
}  // namespace dtensor::test
