// How much of a model is gathered at a time, and how often.
#include "dtensor/events.h"
#include "dtensor/loss.h"
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

TEST(FsdpSchedule, KeepsAtMostThePrefetchBudget) {
  const std::int64_t unit = 320;  // 6 * 6 * 8, aligned.
  for (std::int64_t ahead = 0; ahead < 4; ++ahead) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Tower tower(6);
      const auto units = tower.shard(mesh, {.prefetch_bytes = ahead * unit});
      ASSERT_EQ(units[0].gathered_bytes(), unit);
      for (int step = 0; step < 3; ++step) {
        units[0].reset_peaks();
        const auto before = units[0].stats();
        tower.loss(sharded(input(), mesh)).backward();
        const auto after = units[0].stats();
        // The unit in use and prefetched units. There are 6 gathers in forward. Backward does not repeat that of the
        // last layer and, since the input needs no gradient, that of the first. In the first step, backward may
        // prefetch one unit that it does not use.
        EXPECT_LE(after.peak_gathered_bytes, (1 + ahead) * unit);
        if (step > 0) {
          EXPECT_EQ(after.peak_gathered_bytes, (1 + ahead) * unit);
          EXPECT_EQ(after.all_gathers - before.all_gathers, 6 + 4);
        }
        EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 6);
        EXPECT_LE(after.peak_unreduced_bytes, units[0].gradient_bytes());  // Unreduced gradients do not accumulate.
        EXPECT_EQ(after.gathered_bytes, 0);
      }
    });
  }
}

// Both ends of the tower are one unit, as embedding and head are. Backward starts with it, followed by the unit that
// forward used before it. That unit stays gathered, and is freed if another forward pass follows instead.
TEST(FsdpSchedule, LastUnitsOfForwardStayForBackward) {
  const std::int64_t layer = 320;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(6), tower(6);
    const auto ends = fully_shard({tower.layer(0)[0], tower.layer(5)[0]}, mesh);
    for (int i = 1; i < 5; ++i) fully_shard(tower.layer(i), mesh);
    fully_shard(tower.list(), mesh);  // Joins the units.
    const auto x = sharded(input(), mesh);
    const auto gathers = [&](auto&& body) {
      auto unit = ends;
      unit.reset_peaks();
      const auto before = ends.stats().all_gathers;
      body();
      EXPECT_LE(ends.stats().peak_gathered_bytes, 3 * layer);  // The ends and one layer.
      return ends.stats().all_gathers - before;
    };
    // All five units, and three layers again, in the first step as well.
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(gathers([&] { tower.loss(x).backward(); }), 5 + 3);
      regular.loss(input()).backward();
      EXPECT_EQ(ends.stats().gathered_bytes, 0);
    }
    at::Tensor first, second;
    EXPECT_EQ(gathers([&] { first = tower.loss(x); }), 5);
    EXPECT_EQ(ends.stats().gathered_bytes, 3 * layer);
    EXPECT_EQ(gathers([&] { second = tower.loss(x); }),
              5);  // The ends were used too often to stay; the layer is not used.
    gathers([&] { (first + second).backward(); });
    EXPECT_EQ(ends.stats().gathered_bytes, 0);
    (regular.loss(input()) * 2).backward();
    (void)tower.loss(x);
    {
      const at::NoGradGuard no_grad;
      gathers([&] { (void)tower.loss(x); });
    }
    expect_same_gradients(tower.w, regular.w);
  });
}

// The forward of a recomputed segment runs without grad mode, but is not inference. Units are freed, kept, or resharded
// within a group as in other steps. Backward gathers each unit once for recomputation and gradients.
TEST(FsdpSchedule, RecomputationNeedsNoMoreGathers) {
  for (const std::variant<bool, std::int64_t> reshard : {std::variant<bool, std::int64_t>(true), {false}, {2L}}) {
    on_mesh({4}, [&](const DeviceMesh& mesh) {
      std::vector<std::string> table;
      for (const bool recomputes : {false, true}) {
        Tower tower(6);
        const auto units = tower.shard(mesh, {.reshard_after_forward = reshard});
        const auto x = sharded(input(), mesh).requires_grad_();
        for (int step = 0; step < 3; ++step) {
          units[0].reset_peaks();
          const CommDebugMode comms;
          at::Tensor h = x;
          for (const auto& w : tower.w) {
            const auto layer = [&w](const at::Tensor& y) { return at::gelu(at::linear(y, w)); };
            h = recomputes ? checkpoint(layer, h) : layer(h);
          }
          h.square().mean().backward();
          const auto gathers = comms.total("all_gather");
          table.push_back(c10::str(step, ": ", gathers.calls, " gathers, ", gathers.bytes, " bytes, peak ",
                                   units[0].stats().peak_gathered_bytes));
        }
      }
      EXPECT_EQ(std::vector(table.begin(), table.begin() + 3), std::vector(table.begin() + 3, table.end()));
    });
  }
}

TEST(FsdpSchedule, MemoryIsThatOfTheUnitsInUse) {
  for (const bool reshard : {true, false}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Net net(3);
      FsdpOptions options;
      options.reshard_after_forward = reshard;
      const std::vector<FsdpUnit> units = {fully_shard(net.list("a."), mesh, options),
                                           fully_shard(net.list("b."), mesh, options),
                                           fully_shard(net.list(), mesh, options)};
      const auto sum = [&](auto bytes_of) {
        return std::accumulate(units.begin(), units.end(), std::int64_t{0},
                               [&](std::int64_t bytes, const FsdpUnit& unit) { return bytes + (unit.*bytes_of)(); });
      };
      std::int64_t shards = 0, gradients = 0;
      for (const auto& [name, slot] : net.list()) shards += DTensor(slot->detach()).to_local().nbytes();
      for (int step = 0; step < 2; ++step) {
        const auto d = data(net, 1, 5);
        net.loss(distribute_tensor(d.x, mesh, {Shard(0)}), distribute_tensor(d.ids, mesh, {Shard(0)})).backward();
      }
      for (const auto& [name, slot] : net.list()) {
        if (slot->grad().defined()) gradients += DTensor(slot->grad()).to_local().nbytes();
      }
      EXPECT_EQ(sum(&FsdpUnit::shard_bytes), shards);
      EXPECT_LE(gradients, shards);  // One parameter is not used.
      const auto all = sum(&FsdpUnit::gathered_bytes);
      const auto apart = std::min(units[0].gathered_bytes(), units[1].gathered_bytes());  // never together
      EXPECT_EQ(units[0].stats().peak_gathered_bytes, reshard ? all - apart : all);
      const auto unreduced =
          sum(&FsdpUnit::gradient_bytes) - std::min(units[0].gradient_bytes(), units[1].gradient_bytes());
      EXPECT_LE(units[0].stats().peak_unreduced_bytes, unreduced);
      EXPECT_GE(2 * units[0].stats().peak_unreduced_bytes, unreduced);
    });
  }
}

// With reshard_after_forward = 2, each rank keeps its part of the group's shards of every unit from forward to
// backward.
TEST(FsdpSchedule, GroupShardsAreCounted) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    Tower tower(6, 64);
    const auto units = tower.shard(mesh, {.reshard_after_forward = std::int64_t{2}, .prefetch_bytes = 0});
    const auto one = units[0].gathered_bytes();
    EXPECT_EQ(units[0].kept_shard_bytes(), one / 2);
    for (int step = 0; step < 3; ++step) {
      const auto loss = tower.loss(sharded(input(4, 64), mesh));
      EXPECT_GE(units[0].stats().gathered_bytes, 5 * one / 2) << step;
      loss.backward();
      EXPECT_EQ(units[0].stats().gathered_bytes, 0) << step;
    }
    const auto in_use = 2 * one + 4 * (one / 2);  // two gathered units, and the shares of the others
    EXPECT_LE(units[0].stats().peak_gathered_bytes, in_use);
    EXPECT_GE(2 * units[0].stats().peak_gathered_bytes, in_use);
  });
}

// For example a norm of each parameter: units of which only some parameters are read do not stay gathered.
TEST(FsdpSchedule, ReadingParametersOutsideTrainingKeepsFewUnits) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(8);
    std::vector<FsdpUnit> units;
    for (int i = 0; i < 8; i += 2) {
      units.push_back(fully_shard({tower.layer(i)[0], tower.layer(i + 1)[0]}, mesh));
    }
    fully_shard(tower.list(), mesh);
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 8; i += 2) (void)tower.w[static_cast<std::size_t>(i)].abs().sum();
    EXPECT_LE(units[0].stats().peak_gathered_bytes, 3 * units[0].gathered_bytes());
  });
}

// linear_cross_entropy(), like linear(), takes the head from the gathered copy of its unit: of five units, one has both
// ends of the tower, and backward gathers three again. A rank receives half of the bytes.
TEST(FsdpSchedule, TheFusedLossUsesTheHeadOfItsUnit) {
  constexpr std::int64_t kWidth = 6, kMatrices = 6 + 3, kClasses = kWidth;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t chunk : {0, 3}) {
      on_mesh({2}, [&](const DeviceMesh& mesh) {
        Tower regular(6, kWidth, at::kFloat), tower(6, kWidth, at::kFloat);
        const FsdpOptions options{.precision = {.param_dtype = dtype}};
        fully_shard({tower.layer(0)[0], tower.layer(5)[0]}, mesh, options);
        for (int i = 1; i < 5; ++i) fully_shard(tower.layer(i), mesh, options);
        fully_shard(tower.list(), mesh, options);  // Joins the units.
        const auto x = input(8, kWidth).to(at::kFloat), targets = Draw(3).integers({8}, kClasses);
        const auto own_x = sharded(x.to(dtype), mesh), own_targets = sharded(targets, mesh);
        const auto loss_of = [&](const Tower& t, at::Tensor h, const at::Tensor& classes) {
          for (std::size_t i = 0; i < 5; ++i) h = at::gelu(at::linear(h, t.w[i]));
          return linear_cross_entropy(h, t.w[5], classes, {}, chunk);
        };
        loss_of(regular, x, targets).backward();
        for (int step = 0; step < 3; ++step) {
          std::int64_t gathers = 0, bytes = 0;
          const EventListener listener(
              [&](const Event& e) {
                if (e.name == "all_gather") ++gathers, bytes += e.bytes;
              },
              {Event::Kind::collective});
          at::Tensor loss;
          {
            const ComputeScope scope(tower.list());
            loss = loss_of(tower, own_x, own_targets);
          }
          loss.backward();
          EXPECT_EQ(gathers, 5 + 3) << "step " << step;
          EXPECT_EQ(bytes, kMatrices * kWidth * kWidth * static_cast<std::int64_t>(c10::elementSize(dtype)) / 2);
          for (std::size_t i = 0; i < tower.w.size(); ++i) {
            if (dtype == at::kFloat) expect_close(tower.w[i].grad(), regular.w[i].grad(), "gradient", 1e-6);
            tower.w[i].mutable_grad().reset();
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace dtensor::test
