// Attention over a split sequence by CUDA's flash kernels, against explicit formulas on the CPU.
#include "attention/cases.h"
#include "gpu/gpu.h"

namespace dtensor::test {
namespace {

using GpuAttention = Gpu;

TEST_F(GpuAttention, SplitSequencesEqualOneDevice) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Draw draw(seed);
    Case c;
    c.seed = seed;
    c.by_aten = draw.coin();
    c.heads = 8, c.groups = draw.coin() ? 8 : 2;
    c.queries = c.keys = draw.integer(2, 300);
    c.features = c.values = draw.coin() ? 64 : 8;
    c.dtype = draw.coin() ? at::kHalf : at::kBFloat16;
    c.options.causal = draw.coin();
    if (!c.by_aten && draw.coin()) c.options.window = draw.integer(1, 64);
    c.strategy = static_cast<AttentionStrategy>(draw.integer(0, 3));
    c.where.assign(3, {draw.coin() ? Placement(Shard(2)) : Placement(ZigzagShard(2))});
    run_local(2, [&](const Communicator& world) { check_case(c, init_device_mesh(world, at::kCUDA, {2}, {"cp"})); });
  }
}

}  // namespace
}  // namespace dtensor::test
