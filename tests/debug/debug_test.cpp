// What the debugging aids say of a program: counts, memory, pictures, and a rank that stops while the others wait.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "dtensor/debug.h"
#include "dtensor/debug_rank.h"
#include "dtensor/dtensor.h"
#include "dtensor/memory_timeline.h"
#include "dtensor/picture.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

void on_2x2(const std::function<void(const DeviceMesh&)>& body) {
  run_local(4, [&](Communicator world) { body(init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"})); });
}

TEST(CommDebugMode, FilesCollectivesUnderModulesForwardAndBackward) {
  on_2x2([](const DeviceMesh& mesh) {
    const at::Tensor w = distribute_tensor(at::ones({4, 4}), mesh, {Replicate(), Shard(0)}).requires_grad_();
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0), Shard(1)});
    const std::string outer = "h.0", inner = "mlp";
    CommDebugMode comms;
    at::Tensor y;
    {
      const ModuleScope first(outer);
      const ModuleScope second(inner);
      y = at::relu(at::mm(x, w));
    }
    EXPECT_EQ(comms.total("all_reduce", "tp", "h.0.mlp").calls, 1) << comms.table();
    EXPECT_EQ(comms.total("all_reduce", "tp", "h.0.ml").calls, 0);  // a part of a name is no module
    y.sum().backward();
    EXPECT_EQ(comms.total("all_reduce", Phase::backward, "h.0").calls, 1) << comms.table();  // of w, over dp
    EXPECT_EQ(comms.total("all_reduce", "dp", "h.0.mlp").bytes, 4 * 2 * 4) << comms.table();
    EXPECT_NE(comms.table().find("h.0.mlp  backward"), std::string::npos) << comms.table();
    comms.reset();
    EXPECT_EQ(comms.total().calls, 0);
  });
}

TEST(MemoryTimeline, CountsThisRanksBytesByModule) {
  run_local(2, [](Communicator world) {
    const std::string name = "big";
    MemoryTimeline memory;
    {
      const at::Tensor small = at::empty({1000}, at::kByte);
      EXPECT_GE(memory.live(), 1000);
      const ModuleScope scope(name);
      if (world.rank() == 1) {
        const at::Tensor big = at::empty({1 << 20}, at::kByte);
        const MemoryTimeline inner;
        const at::Tensor more = at::empty({5000}, at::kByte);
        EXPECT_GE(inner.live(), 5000);
        EXPECT_LT(inner.live(), 20000);
      }
    }
    world.barrier();
    EXPECT_LT(memory.live(), 1000);
    if (world.rank() == 1) {
      EXPECT_GE(memory.peak().bytes, (1 << 20) + 6000);
      EXPECT_EQ(memory.peak().module, "big");
    } else {
      EXPECT_LT(memory.peak().bytes, 1 << 20);
    }
    EXPECT_NE(memory.csv().find("forward,"), std::string::npos);
    EXPECT_NE(memory.svg().find("<path"), std::string::npos);
    memory.reset_peak();
    EXPECT_LT(memory.peak().bytes, 1000);
  });
}

// Live bytes of backward are filed under the module whose forward made the node.
TEST(MemoryTimeline, FollowsBackward) {
  const std::string name = "layer";
  at::Tensor x = at::ones({1 << 16}).requires_grad_();
  MemoryTimeline memory;
  at::Tensor y;
  {
    const ModuleScope scope(name);
    y = x.sigmoid();
  }
  const at::Tensor loss = y.sum();
  memory.reset_peak();
  loss.backward();
  EXPECT_EQ(memory.peak().module, "layer");
  EXPECT_EQ(memory.peak().phase, Phase::backward);
}

TEST(Picture, NamesTheRanksOfEachPart) {
  on_2x2([](const DeviceMesh& mesh) {
    EXPECT_EQ(placement_text({5, 4}, mesh, {Shard(0), Shard(1)}),
              "[5, 4] on DeviceMesh(cpu, dp=2, tp=2, ranks=[0, 1, 2, 3]) [S(0), S(1)]\n"
              "    | 0:2  2:4\n"
              "0:3 | 0    1\n"
              "3:5 | 2    3\n");
    EXPECT_EQ(placement_text({4}, mesh, {Replicate(), Shard(0)}),
              "[4] on DeviceMesh(cpu, dp=2, tp=2, ranks=[0, 1, 2, 3]) [R, S(0)]\n"
              "    |\n"
              "0:2 | 0 2\n"
              "2:4 | 1 3\n");
    const std::string strided = placement_text({8, 2}, mesh, {StridedShard(0, 2), Shard(0)});
    EXPECT_NE(strided.find("0:2 | 0\n2:4 | 2\n4:6 | 1\n6:8 | 3\n"), std::string::npos) << strided;
    EXPECT_NE(placement_text({}, mesh, {Replicate(), Partial()}).find("shares of the values\n"), std::string::npos);
    const at::Tensor t = distribute_tensor(at::ones({3, 2}), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(placement_text(t), placement_text({3, 2}, mesh, {Shard(0), Shard(1)}));
    EXPECT_NE(placement_svg(t).find(">3</text>"), std::string::npos);
  });
}

// Every element of the picture is held by exactly the ranks that it names.
TEST(Picture, AgreesWithTheLocalParts) {
  for (const auto& shape : {test::Shape{3}, test::Shape{2, 3}}) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(3);
      for (int round = 0; round < 10; ++round) {
        const test::Shape sizes = draw.sizes(2, 1);
        const Placements placements = draw.placements(mesh, 2, false);
        const at::Tensor t = distribute_tensor(at::arange(sizes[0] * sizes[1]).view(sizes), mesh, placements);
        const std::string text = placement_text(t);
        const at::Tensor local = DTensor(t).to_local();
        const std::string rank = std::to_string(mesh.world().rank());
        if (local.numel() == 0) continue;
        const std::int64_t row = local.flatten()[0].item<std::int64_t>() / sizes[1];
        // The line that starts at this rank's first row names the rank.
        const std::size_t line = text.find("\n" + std::to_string(row) + ":");
        ASSERT_NE(line, std::string::npos) << text;
        const std::string cells = text.substr(text.find('|', line), text.find('\n', line + 1) - text.find('|', line));
        EXPECT_NE(cells.find(rank), std::string::npos) << text << rank;
      }
    });
  }
}

TEST(DebugRank, OthersWaitWithoutTimingOut) {
  RunOptions options;
  options.timeout = std::chrono::milliseconds(200);
  std::atomic<int> stopped{0};
  run_local(
      3,
      [&](Communicator world) {
        debug_rank(world, 1, [&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(700));
          stopped += 10 + world.rank();
        });
        EXPECT_EQ(stopped, 11);
      },
      options);
  std::vector<int> order;
  run_local(3, [&](Communicator world) {
    debug_rank(world, kAllRanksInTurn, [&] { order.push_back(world.rank()); });
    EXPECT_NE(attach_hint(world, std::source_location::current()).find("gdb -p"), std::string::npos);
    EXPECT_THROW(debug_rank(world, 3), c10::Error);
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  // Afterwards waits time out again.
  EXPECT_ANY_THROW(run_local(
      2,
      [](Communicator world) {
        if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(700));
        world.barrier();
      },
      options));
}

}  // namespace
