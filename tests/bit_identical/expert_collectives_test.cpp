// What experts in a BitIdentical scope receive: rows over ep, as outside of it, and over edp the nodes of the gradients
// of their weights.
#include "bit_identical/bits.h"
#include "dtensor/events.h"
#include "dtensor/moe.h"
#include "dtensor/parallelize.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kTokens = 128, kHidden = 16, kExperts = 4, kBlock = 8;
constexpr std::int64_t kRowBytes = kHidden * 4, kWeightBytes = kHidden * kHidden * 4;

// Bytes of floating-point numbers that this rank receives, by collective. Token t has expert t % kExperts.
std::map<std::string, std::int64_t> received_by(const DeviceMesh& mesh) {
  RoutedExperts experts;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    experts.add(std::make_unique<nn::Linear>(kHidden, kHidden, /*bias=*/false));
  }
  apply_expert_parallel(experts, mesh);
  const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Shard(0), Shard(0)}); };
  const at::Tensor x = place(Draw(9).normal({kTokens, kHidden}, at::kFloat)).requires_grad_();
  const at::Tensor ids = place(at::arange(kTokens).remainder(kExperts).unsqueeze(1));
  const at::Tensor weights = place(at::ones({kTokens, 1}));
  const BitIdentical scope(kBlock);
  std::map<std::string, std::int64_t> received;
  bool floats = false;
  const EventListener listener(
      [&](const Event& event) {
        if (event.kind == Event::Kind::contribution) {
          floats = !event.tensors.empty() && event.tensors[0].is_floating_point();
        } else if (floats) {
          received[event.name] += event.bytes;
        }
      },
      {Event::Kind::contribution, Event::Kind::collective});
  experts.forward(x, ids, weights).backward(place(at::ones({kTokens, kHidden})));
  return received;
}

// Tokens go to their expert and back, and so do gradients. Half of each rank's tokens have an expert of the other.
TEST(BitIdenticalExpertCollectives, OverEpAreRows) {
  run_local(2, [](const Communicator& world) {
    const auto received = received_by(init_device_mesh(world, at::kCPU, {1, 2}, {"edp", "ep"}));
    const std::int64_t rows = kTokens / 2 / 2;
    EXPECT_EQ(received, (std::map<std::string, std::int64_t>{{"all_to_all", 4 * rows * kRowBytes}}));
  });
}

// Each rank has half of an expert's rows, an entire subtree of blocks, so it receives one node from each other rank.
TEST(BitIdenticalExpertCollectives, OverEdpAreNodesOfWeights) {
  for (const int ranks : {2, 4}) {
    run_local(ranks, [&](const Communicator& world) {
      const auto received = received_by(init_device_mesh(world, at::kCPU, {ranks, 1}, {"edp", "ep"}));
      const std::int64_t nodes = kExperts * (ranks - 1);
      EXPECT_EQ(received, (std::map<std::string, std::int64_t>{{"all_gather", nodes * kWeightBytes}}));
    });
  }
}

}  // namespace
}  // namespace dtensor::test
