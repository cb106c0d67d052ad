// Attention on split sequences between processes: blocks are sent while other blocks are computed.
#include "attention/cases.h"
#include "dtensor/launch.h"

namespace dtensor::test {
namespace {

std::vector<Case> cases(std::int64_t ranks) {
  std::vector<Case> list;
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    for (const std::int64_t length : {1, 7, 64}) {
      Case c;
      c.mesh = {ranks};
      c.queries = c.keys = length;
      c.heads = 6, c.groups = 2;
      c.strategy = strategy;
      c.options.causal = true;
      list.push_back(c);
      c.where = {{ZigzagShard(2)}, {ZigzagShard(2)}, {ZigzagShard(2)}};
      list.push_back(c);
      c.options.dropout = 0.5;
      list.push_back(c);
      c.by_aten = false;
      c.options.window = 5;
      c.options.sinks = at::arange(6, at::kDouble);
      c.options.documents = {0, length / 2};
      if (length > 1) list.push_back(c);
    }
  }
  return list;
}

void check_bytes(const DeviceMesh& mesh) {
  const std::int64_t ranks = mesh.size();
  const auto x = distribute_tensor(at::ones({2, 3, 24, 8}, at::kDouble), mesh, {Shard(2)});
  const AttentionStrategyScope scope(AttentionStrategy::ring);
  const CommDebugMode comms;
  at::scaled_dot_product_attention(x, x, x);
  const auto bytes = comms.total().bytes;
  TORCH_CHECK(bytes == 2 * 2 * 3 * 24 * 8 * 8 * (ranks - 1) / ranks, "ring attention moved ", bytes,
              " bytes, expected the keys and values of the other ranks");
}

}  // namespace
}  // namespace dtensor::test

int main(int argc, char** argv) {
  using namespace dtensor;
  return launch(argc, argv, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"cp"});
    for (const auto& c : test::cases(world.size())) test::check_case(c, mesh);
    test::check_bytes(mesh);
    if (world.rank() == 0) std::printf("attention between %d processes equals one device\n", world.size());
  });
}
