// Dictionaries of values whose names are known only at load time, and invalid values.
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/folder.h"
#include "dtensor/grad_scaler.h"

namespace dtensor::test {
namespace {

TEST(Values, DictionaryReceivesValuesUnderItsPrefix) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    CheckpointValues saved{{"loss", 0.5}, {"steps", std::int64_t{3}}, {"note", std::string("x")}, {"done", true}};
    std::int64_t step = 7, inner = 8;
    Checkpoint()
        .add("metrics", saved)
        .add("step", step)
        .add("metrics.inner", inner)
        .save(folder / "all", mesh.world(), kQuick);

    CheckpointValues read{{"steps", 0.0},
                          {"note", std::int64_t{0}}};  // initial types differ; the integer 3 is read as 3.0
    step = inner = 0;
    Checkpoint().add("metrics", read).add("step", step).add("metrics.inner", inner).load(folder / "all", mesh.world());
    auto expected = saved;
    expected["steps"] = 3.0;
    EXPECT_EQ(read, expected);
    EXPECT_EQ(step, 7);
    EXPECT_EQ(inner, 8);  // belongs to another entry

    CheckpointValues some{{"loss", 0.0}};
    const auto load_some = [&](bool all) {
      Checkpoint state;
      state.add("", some, [&](const std::string& name) { return all || name.starts_with("metrics.n"); });
      state.load(folder / "all", mesh.world(), {.allow_missing = true});
    };
    EXPECT_THROW(load_some(false), c10::ValueError);
    EXPECT_EQ(some, (CheckpointValues{{"loss", 0.0}}));
    load_some(true);
    EXPECT_EQ(some.size(), 7U);
    EXPECT_EQ(some.at("loss"), CheckpointValues::mapped_type(0.0));  // missing, which is allowed
  });
}

TEST(Values, NameOnOneRankOnlyIsAnErrorOnAll) {
  const Folder folder;
  const auto errors = errors_on(3, [&](const Communicator& world) {
    CheckpointValues saved{{"a", 1.0}};
    Checkpoint().add("", saved).save(folder / "one", world, kQuick);
    CheckpointValues read{{world.rank() == 1 ? "b" : "a", 0.0}};
    Checkpoint().add("", read).load(folder / "one", world);
  });
  expect_error(errors, {"rank 1: ", "missing in the checkpoint: 'b'"});
}

TEST(Values, RanksSaveTheirOwnNamesAndValues) {
  const Folder folder;
  const auto name = [](int rank) { return "loader.rank" + std::to_string(rank); };
  const auto load = [&](const std::vector<int>& as, const LoadOptions& options) {
    return errors_on(static_cast<int>(as.size()), [&](const Communicator& world) {
      const int rank = as[static_cast<std::size_t>(world.rank())];
      CheckpointValues values{{"step", std::int64_t{0}}, {name(rank), std::int64_t{0}}};
      const at::Tensor bytes = at::zeros({rank + 1}, at::kByte);
      const auto none = [](const std::string&) { return false; };
      Checkpoint state;
      state.add("", values, none).add("", StateTensors{{name(rank) + ".state", bytes}});
      state.load(folder / "c", world, options);
      EXPECT_EQ(values, (CheckpointValues{{"step", std::int64_t{7}}, {name(rank), std::int64_t{100 + rank}}}));
      EXPECT_TRUE(bytes.equal(at::full({rank + 1}, 10 + rank, at::kByte)));
    });
  };
  run_local(3, [&](const Communicator& world) {
    const int rank = world.rank();
    CheckpointValues values{{"step", std::int64_t{7}}, {name(rank), std::int64_t{100 + rank}}};
    const at::Tensor bytes = at::full({rank + 1}, 10 + rank, at::kByte);
    Checkpoint()
        .add("", values)
        .add("", StateTensors{{name(rank) + ".state", bytes}})
        .save(folder / "c", world, kQuick);
  });
  EXPECT_EQ(load({0, 1, 2}, {}), std::vector<std::string>(3));
  EXPECT_EQ(load({2, 0, 1}, {}), std::vector<std::string>(3));
  expect_error(load({0, 1}, {}), {"in the checkpoint but not requested: 'loader.rank2'", "'loader.rank2.state'"});
  EXPECT_EQ(load({2, 0}, {.allow_unexpected = true}), std::vector<std::string>(2));
  expect_error(load({0, 1, 2, 3}, {}), {"rank 3: ", "missing in the checkpoint: 'loader.rank3'"});
}

TEST(Values, InvalidScaleIsDetectedBeforeAnyChange) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const double scale : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
      CheckpointValues saved{
          {"step", std::int64_t{5}}, {"scaler.scale", scale}, {"scaler.good_steps", std::int64_t{2}}};
      Checkpoint().add("", saved).save(folder / "bad", mesh.world(), kQuick);
      std::int64_t step = 1;
      GradScaler scaler;
      const double former = scaler.state().scale;
      Checkpoint state;
      state.add("step", step).add("scaler", scaler);
      EXPECT_THROW(state.load(folder / "bad", mesh.world()), c10::ValueError);
      EXPECT_EQ(step, 1);
      EXPECT_EQ(scaler.state().scale, former);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
