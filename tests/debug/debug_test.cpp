// Debugging aids: counts, memory, visualizations, and a rank that stops while the others wait.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"
#include "internal/attach_hint.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

void on_2x2(const std::function<void(const DeviceMesh&)>& body) {
  run_local(4, [&](Communicator world) { body(init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"})); });
}

TEST(CommDebugMode, AttributesCollectivesToModulesAndPhases) {
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
    EXPECT_EQ(comms.total("all_reduce", "tp", "h.0.ml").calls, 0);  // a part of a name does not match
    y.sum().backward();
    EXPECT_EQ(comms.total("all_reduce", Phase::backward, "h.0").calls, 1) << comms.table();  // gradient of w, over dp
    EXPECT_EQ(comms.total("all_reduce", "dp", "h.0.mlp").bytes, 4 * 2 * 4) << comms.table();
    EXPECT_NE(comms.table().find("h.0.mlp  backward"), std::string::npos) << comms.table();
    comms.reset();
    EXPECT_EQ(comms.total().calls, 0);
  });
}

TEST(CommDebugMode, NamesTheParametersOfCollectives) {
  on_2x2([](const DeviceMesh& mesh) {
    at::Tensor norm = distribute_tensor(at::ones({4}), mesh, {Replicate(), Replicate()}).requires_grad_();
    at::Tensor w = distribute_tensor(at::ones({4, 6}), mesh, {Shard(1), Shard(0)}).requires_grad_();
    const at::Tensor x = distribute_tensor(at::ones({8, 4}), mesh, {Shard(0), Replicate()});
    const CommDebugMode comms({{"h.0.norm", &norm}, {"h.0.w", &w}});
    const auto of = [&](const std::string& name, Phase phase) {
      return comms.total([&](const CommDebugMode::Key& key) { return key.parameter == name && key.phase == phase; });
    };
    const at::Tensor gathered = DTensor(w).redistribute({Replicate(), Shard(0)});
    EXPECT_EQ(of("h.0.w", Phase::forward).calls, 1) << comms.table();
    EXPECT_EQ(of("h.0.w", Phase::forward).bytes, 2 * 3 * 4) << comms.table();  // the other half of [2, 6] floats
    at::mm(x, w.t().t()).sum();                                                // views count as the parameter
    EXPECT_GT(of("h.0.w", Phase::forward).calls, 1) << comms.table();
    at::mul(x, norm).sum().backward();
    EXPECT_EQ(of("h.0.norm", Phase::backward).calls, 1) << comms.table();  // gradient of norm, over dp
    EXPECT_EQ(of("h.0.norm", Phase::backward).bytes, 4 * 4) << comms.table();
    DTensor(at::relu(x)).full_tensor();
    EXPECT_EQ(of("", Phase::forward).calls, 1) << comms.table();  // an activation has no parameter name
    EXPECT_NE(comms.table().find("parameter"), std::string::npos) << comms.table();
  });
}

TEST(CommDebugMode, NamesUnitsByTheirCommonPrefix) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    std::vector<at::Tensor> w;
    for (int i = 0; i < 3; ++i) w.push_back(at::ones({4, 4}).requires_grad_());
    const NamedTensors all = {{"h.0.attn.q", &w[0]}, {"h.0.mlp.up", &w[1]}, {"head", &w[2]}};
    fully_shard(NamedTensors(all.begin(), all.begin() + 2), mesh);
    fully_shard(NamedTensors(all.begin() + 2, all.end()), mesh);
    const CommDebugMode comms(all);
    at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    for (const auto& [name, tensor] : all) x = at::mm(x, *tensor);
    x.sum().backward();
    const auto of = [&](const std::string& name, const std::string& kind) {
      return comms.total([&](const CommDebugMode::Key& key) { return key.parameter == name && key.kind == kind; });
    };
    const std::int64_t half = 4 * 4 / 2 * 4;  // half of a matrix, from the other rank
    for (const char* kind : {"all_gather", "reduce_scatter"}) {
      EXPECT_EQ(of("h.0.* (2)", kind).bytes, 2 * half) << comms.table();
      EXPECT_EQ(of("head", kind).bytes, half) << comms.table();
    }
    EXPECT_EQ(comms.total("reduce_scatter").calls, 2) << comms.table();
  });
}

TEST(CommDebugMode, TableWithoutNamesHasNoParameterColumn) {
  on_2x2([](const DeviceMesh& mesh) {
    const at::Tensor w = distribute_tensor(at::ones({4, 6}), mesh, {Shard(1), Shard(0)});
    const CommDebugMode comms;
    DTensor(w).full_tensor();
    EXPECT_EQ(comms.counts().begin()->first.parameter, "");
    EXPECT_EQ(comms.table().find("parameter"), std::string::npos);
  });
}

TEST(MemoryTimeline, CountsBytesOfThisRankByModule) {
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
    EXPECT_NE(memory.svg().find("<polyline"), std::string::npos);
    memory.reset_peak();
    EXPECT_LT(memory.peak().bytes, 1000);
  });
}

// Live bytes in backward belong to the module whose forward made the node.
TEST(MemoryTimeline, AttributesBackwardToModules) {
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

// Two blocks, the larger made inside a module. Memory freed before the peak is not listed.
TEST(MemoryTimeline, ListsModulesWithMemoryAtThePeak) {
  const std::string name = "h.0";
  MemoryTimeline memory;
  at::Tensor outside = at::empty({1000}, at::kByte), inside;
  {
    const ModuleScope scope(name);
    inside = at::empty({5000}, at::kByte);
  }
  at::empty({400}, at::kByte);
  outside.reset();
  const at::Tensor later = at::empty({300}, at::kByte);  // below the peak
  const auto holders = memory.holders_at_peak();
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].module, "h.0");
  EXPECT_EQ(holders[0].bytes, 5000);
  EXPECT_EQ(holders[0].phase, Phase::forward);
  EXPECT_EQ(holders[1].module, "");
  EXPECT_EQ(holders[1].bytes, 1400);
  EXPECT_EQ(holders[0].bytes + holders[1].bytes, memory.peak().bytes);
  const auto svg = memory.svg();
  for (const char* part :
       {"held at the peak, MB", "0.005 h.0 (forward)", "0.001 no module (forward)", ">time, ms<", ">memory, MB<"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part << svg;
  }
}

// A redistribution for gelu, which needs the full sum, and a gather that the program requests.
TEST(Explain, ListsRedistributionsByModuleWithAlternatives) {
  on_2x2([](const DeviceMesh& mesh) {
    const std::string name = "h.0";
    const at::Tensor x = ones({8, 8}, mesh, {Shard(0), Shard(0)}), w = ones({8, 6}, mesh, {Replicate(), Shard(1)});
    const at::Tensor shares = DTensor::from_local(at::ones({4, 6}), mesh, {Partial(), Replicate()});
    const auto still = explain([&] { at::relu(at::mul(x, x)); });
    EXPECT_EQ(still, "no communication\n");
    const auto reported = explain([&] {
      {
        const ModuleScope scope(name);
        at::gelu(shares);
      }
      DTensor(w).full_tensor();
    });
    // An all_reduce of 4 x 6 floats receives 2 (n - 1) / n of them; the gather of halves receives one half.
    EXPECT_EQ(reported,
              "outside any module: 96 bytes\n  full_tensor: 1 all_gather over tp, 96 bytes\n"
              "h.0: 96 bytes\n  aten::gelu: 1 all_reduce over dp, 96 bytes\n"
              "    avoided by operand 0 in [R, R] (it is f32[4, 6] on [2, 2] [P(sum), R])\ntotal: 192 bytes\n");
    const auto calls = explain([&] { at::mm(x, w); }, Explain::decisions);
    EXPECT_NE(calls.find("rule mk, kn -> mn"), std::string::npos) << calls;
  });
}

TEST(Events, HaveOperandsModulesAxesAndRanks) {
  on_2x2([](const DeviceMesh& mesh) {
    const std::string name = "h.0";
    std::vector<Event> events;
    const at::Tensor x = DTensor::from_local(at::ones({4, 6}), mesh, {Partial(), Replicate()});
    {
      const EventListener listener([&](const Event& event) { events.push_back(event); });
      const ModuleScope scope(name);
      at::gelu(x);
    }
    const auto find = [&](const std::string& what) {
      return std::find_if(events.begin(), events.end(), [&](const Event& e) { return e.name == what; });
    };
    const auto op = find("aten::gelu"), reduce = find("all_reduce");
    ASSERT_TRUE(op != events.end() && reduce != events.end());
    EXPECT_EQ(op->operands, "f32[4, 6] [P(sum), R]");
    EXPECT_EQ(op->module, "h.0");
    EXPECT_EQ(reduce->module, "h.0");
    EXPECT_EQ(reduce->axis, "dp");
    const std::int64_t column = mesh.world().rank() % 2;
    EXPECT_EQ(reduce->ranks, (std::vector<std::int64_t>{column, column + 2}));
    EXPECT_GT(reduce->sequence, 0U);
  });
}

// The colors are explicit, so that the page's color is not inherited.
TEST(Plot, HasExplicitColors) {
  on_2x2([](const DeviceMesh& mesh) {
    const auto svg = visualize_sharding_svg(ones({8, 8}, mesh, {Shard(0), Shard(1)}));
    EXPECT_NE(svg.find("fill=\"#222\""), std::string::npos);
    EXPECT_NE(svg.find("fill=\"#fff\""), std::string::npos);
    std::set<std::string> colors;
    for (auto at = svg.find("stroke=\"black\""); at != std::string::npos; at = svg.find("stroke=\"black\"", at + 1)) {
      colors.insert(svg.substr(at - 9, 7));
    }
    EXPECT_EQ(colors.size(), 4U) << svg;  // one per set of ranks
  });
}

TEST(Plot, NamesTheRanksOfEachPart) {
  on_2x2([](const DeviceMesh& mesh) {
    EXPECT_EQ(visualize_sharding({5, 4}, mesh, {Shard(0), Shard(1)}),
              "[5, 4] on DeviceMesh(cpu, dp=2, tp=2, ranks=[0, 1, 2, 3]) [S(0), S(1)]\n"
              "    | 0:2  2:4\n"
              "0:3 | 0    1\n"
              "3:5 | 2    3\n");
    EXPECT_EQ(visualize_sharding({4}, mesh, {Replicate(), Shard(0)}),
              "[4] on DeviceMesh(cpu, dp=2, tp=2, ranks=[0, 1, 2, 3]) [R, S(0)]\n"
              "    |\n"
              "0:2 | 0 2\n"
              "2:4 | 1 3\n");
    const std::string strided = visualize_sharding({8, 2}, mesh, {StridedShard(0, 2), Shard(0)});
    EXPECT_NE(strided.find("0:2 | 0\n2:4 | 2\n4:6 | 1\n6:8 | 3\n"), std::string::npos) << strided;
    EXPECT_NE(visualize_sharding({}, mesh, {Replicate(), Partial()}).find("shares of the values\n"), std::string::npos);
    const at::Tensor t = distribute_tensor(at::ones({3, 2}), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(visualize_sharding(t), visualize_sharding({3, 2}, mesh, {Shard(0), Shard(1)}));
    EXPECT_NE(visualize_sharding_svg(t).find(">3</text>"), std::string::npos);
  });
}

// Each part of the visualization names exactly the ranks that store it.
TEST(Plot, MatchesLocalTensors) {
  for (const auto& shape : {test::Shape{3}, test::Shape{2, 3}}) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(3);
      for (int round = 0; round < 10; ++round) {
        const test::Shape sizes = draw.sizes(2, 1);
        const Placements placements = draw.placements(mesh, 2, false);
        const at::Tensor t = distribute_tensor(at::arange(sizes[0] * sizes[1]).view(sizes), mesh, placements);
        const std::string text = visualize_sharding(t);
        const at::Tensor local = DTensor(t).to_local();
        const std::string rank = std::to_string(mesh.world().rank());
        if (local.numel() == 0) continue;
        const std::int64_t row = local.flatten()[0].item<std::int64_t>() / sizes[1];
        // The line of this rank's first row names the rank.
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
    debug_rank(world, -1, [&] { order.push_back(world.rank()); });
    EXPECT_NE(attach_hint(world, std::source_location::current()).find("gdb -p"), std::string::npos);
    EXPECT_THROW(debug_rank(world, 3), c10::Error);
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  // Afterwards waits time out again. Rank 0 arrives after the other rank has timed out, even if threads start late.
  std::atomic<bool> timed_out{false};
  EXPECT_ANY_THROW(run_local(
      2,
      [&](Communicator world) {
        for (int i = 0; world.rank() == 0 && !timed_out && i < 3000; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        try {
          world.barrier();
        } catch (const CommError&) {
          timed_out = true;
          throw;
        }
      },
      options));
}

}  // namespace
