// Experts in FSDP units are resharded and gathered as dense units, for any contents of the units.
#include <gtest/gtest.h>

#include "small_layer.h"

namespace dtensor::test {
namespace {

struct Block final : nn::Module {
  explicit Block(const MoeOptions& o) : linear(o.hidden, o.hidden, false, o.tensor), moe(o) {
    register_module("linear", linear);
    register_module("moe", moe);
  }
  at::Tensor forward(const at::Tensor& x) { return x + moe.forward(at::gelu(linear.forward(x))); }
  nn::Linear linear;
  MixtureOfExperts moe;
};

struct Tower final : nn::Module {
  Tower(int layers, const MoeOptions& o) {
    for (int i = 0; i < layers; ++i) {
      blocks.push_back(std::make_unique<Block>(o));
      register_module("h" + std::to_string(i), *blocks.back());
    }
    fill(*this, 3);
  }
  at::Tensor loss(at::Tensor x) const {
    for (const auto& block : blocks) x = block->forward(x);
    return x.square().mean();
  }
  std::vector<std::unique_ptr<Block>> blocks;
};

enum class Units { full_block, experts_apart };

std::vector<FsdpUnit> shard(Tower& tower, const DeviceMesh& mesh, Units kind, const FsdpOptions& options) {
  std::vector<FsdpUnit> units;
  for (const auto& block : tower.blocks) {
    if (kind == Units::experts_apart) units.push_back(fully_shard(expert_parameters(*block), mesh, options));
    units.push_back(fully_shard(*block, mesh, options));
  }
  fully_shard(tower, mesh, options);  // connects the units
  return units;
}

struct Totals {
  std::int64_t largest = 0, all = 0;
};
Totals gathered_bytes(const std::vector<FsdpUnit>& units) {
  Totals totals;
  for (const auto& unit : units) {
    totals.largest = std::max(totals.largest, unit.gathered_bytes());
    totals.all += unit.gathered_bytes();
  }
  return totals;
}

struct Run {
  std::vector<std::vector<std::string>> collectives;  // per step
  std::int64_t bytes = 0;                             // gathered in the last step
};

// In every step at most two units are gathered with resharding, and all without. Each unit is gathered once in forward
// and, if resharded, once in backward; the last unit of forward is still gathered.
Run expect_resharding(const DeviceMesh& mesh, Units kind, const FsdpOptions& options) {
  Tower tower(6, small_options(at::kFloat));
  const auto units = shard(tower, mesh, kind, options);
  const auto totals = gathered_bytes(units);
  const bool reshards = std::get<bool>(options.reshard_after_forward);
  const auto count = static_cast<std::int64_t>(units.size());
  const auto x = distribute_tensor(Draw(5).normal({6, 8}, at::kFloat), mesh, {Shard(0)}).requires_grad_();
  Run run;
  for (int step = 0; step < 3; ++step) {
    units[0].reset_peaks();
    const auto before = units[0].stats();
    const CommDebugMode comms;
    run.collectives.push_back(collectives_of([&] {
      const ComputeScope scope(tower.named_parameters());
      tower.loss(x.to(tower.blocks[0]->linear.weight.scalar_type())).backward();
    }));
    const auto after = units[0].stats();
    const auto what = testing::Message() << "step " << step << "\n" << comms.table();
    EXPECT_LE(after.peak_gathered_bytes, reshards ? 2 * totals.largest : totals.all) << what;
    EXPECT_EQ(after.gathered_bytes, 0) << what;
    EXPECT_EQ(after.all_gathers - before.all_gathers, reshards ? 2 * count - 1 : count) << what;
    EXPECT_EQ(comms.total("all_gather").calls, after.all_gathers - before.all_gathers) << what;
    EXPECT_EQ(comms.total("reduce_scatter").calls, count) << what;
    run.bytes = comms.total("all_gather").bytes;
  }
  return run;
}

TEST(MoeFsdp, UnitsReshardAndParamDtypeChangesOnlyBytes) {
  for (const auto kind : {Units::full_block, Units::experts_apart}) {
    for (const bool reshards : {true, false}) {
      on_mesh({2}, [&](const DeviceMesh& mesh) {
        FsdpOptions options;
        options.reshard_after_forward = reshards;
        const auto wide = expect_resharding(mesh, kind, options);
        options.precision.param_dtype = at::kBFloat16;
        const auto narrow = expect_resharding(mesh, kind, options);
        EXPECT_EQ(narrow.bytes * 2, wide.bytes);
        EXPECT_EQ(narrow.collectives, wide.collectives);  // gradients are reduced in the order of float
      });
    }
  }
}

}  // namespace
}  // namespace dtensor::test
