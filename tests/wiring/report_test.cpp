// The report of the wiring check, on thread ranks.
#include "wiring/report.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "dtensor/comm.h"

namespace wiring {
namespace {

TEST(Wiring, EveryRankHasTheSameReport) {
  std::mutex mutex;
  std::set<std::string> reports;
  dtensor::run_local(4, [&](dtensor::Communicator world) {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    auto report = check(mesh);
    EXPECT_TRUE(report.ok);
    // The diagram marks this rank; the table does not.
    const std::lock_guard lock(mutex);
    reports.insert(report.text.substr(report.text.find("rank ")));
  });
  ASSERT_EQ(reports.size(), 1U);
  const auto& table = *reports.begin();
  for (const auto* cell : {"[0, 2] ok", "[1, 3] ok", "[0, 1] ok", "[2, 3] ok", "[0, 1, 2, 3] ok", "[1, 0]", "cpu"}) {
    EXPECT_NE(table.find(cell), std::string::npos) << cell << "\n" << table;
  }
}

// replicate x shard of rank 0 is [[0,2],[4,6]], its tp line is [0,1].
TEST(Wiring, PairsOfThreeAxesAreShownAsMatrices) {
  dtensor::run_local(8, [&](dtensor::Communicator world) {
    const auto report = check(dtensor::init_device_mesh(world, at::kCPU, {2, 2, 2}, {"replicate", "shard", "tp"}));
    EXPECT_TRUE(report.ok);
    const auto table = report.text.substr(report.text.find("rank "));
    for (const auto* text : {"replicate x shard", "shard x tp", "[[0, 2], [4, 6]] ok", "[[1, 3], [5, 7]] ok",
                             "[[0, 1], [4, 5]] ok", "[0, 1, 2, 3, 4, 5, 6, 7] ok"}) {
      EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
    }
  });
}

// Order matters: the result must match the mesh's list of ranks, not only their sum.
TEST(Wiring, PermutedRanksAreComparedInOrder) {
  dtensor::run_local(4, [&](dtensor::Communicator world) {
    const auto report = check(dtensor::device_mesh(world, at::kCPU, {3, 1, 0, 2}, {2, 2}, {"dp", "tp"}));
    EXPECT_TRUE(report.ok) << report.text;
    EXPECT_NE(report.text.find("[3, 0] ok"), std::string::npos) << report.text;
    EXPECT_NE(report.text.find("[0, 2] ok"), std::string::npos) << report.text;
  });
}

TEST(Wiring, RanksOutsideTheMeshAreListed) {
  dtensor::run_local(3, [](dtensor::Communicator world) {
    const auto report = check(dtensor::init_device_mesh(world, at::kCPU, {2}, {"dp"}));
    EXPECT_TRUE(report.ok);
    EXPECT_NE(report.text.find("\n2     3      cpu"), std::string::npos) << report.text;
  });
}

// Rows grow with the number of ranks and axes: for each pair of axes with the long one, a row lists all ranks.
TEST(Wiring, RowsMayBeLong) {
  constexpr std::int64_t kRanks = 72;
  dtensor::run_local(kRanks, [&](dtensor::Communicator world) {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {1, 1, kRanks, 1, 1, 1, 1, 1},
                                                {"a", "b", "c", "d", "e", "f", "g", "h"});
    const auto report = check(mesh);
    EXPECT_TRUE(report.ok);
    if (world.rank() != 0) return;
    std::int64_t checked = 0;
    for (auto at = report.text.find("] ok"); at != std::string::npos; at = report.text.find("] ok", at + 1)) ++checked;
    EXPECT_EQ(checked, kRanks * (8 + 28 + 1));  // Axes, pairs and the mesh.
  });
}

TEST(Wiring, MeshFlagIsParsedOrRefused) {
  EXPECT_TRUE(parse_mesh("").shape.empty());
  const auto flags = parse_mesh("replicate=1,shard=2,tp=12");
  EXPECT_EQ(flags.shape, (std::vector<std::int64_t>{1, 2, 12}));
  EXPECT_EQ(flags.names, (std::vector<std::string>{"replicate", "shard", "tp"}));
  for (const auto* bad : {"dp", "dp=", "=2", "dp=x", "dp=0", "dp=2,,tp=2", "dp=-1", "dp=99999999"}) {
    EXPECT_THROW(parse_mesh(bad), std::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace wiring
