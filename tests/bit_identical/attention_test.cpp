// Attention in a BitIdentical scope: its values, its bits over split sequences, and what it moves.
#include "dtensor/attention.h"
#include "bit_identical/bits.h"
#include "dtensor/events.h"
#include "support/draws.h"

namespace dtensor::test {
namespace {

struct Case {
  std::string name;
  AttentionOptions options;
};

constexpr std::int64_t kBatch = 2, kHeads = 4, kGroups = 2, kLength = 70, kFeatures = 20;

std::vector<Case> cases() {
  Draw draw(7);
  std::vector<Case> all{{"full", {}}, {"causal", {.causal = true}}, {"scale", {.scale = 0.3}}};
  all.push_back({"window", {.causal = true, .window = 9}});
  all.push_back({"documents", {.causal = true, .documents = {0, 13, 50}}});
  all.push_back({"mask", {.mask = draw.normal({kBatch, 1, kLength, kLength}, at::kDouble)}});
  all.push_back({"bool mask", {.mask = draw.normal({kLength, kLength}, at::kDouble) > 0.5}});
  all.push_back({"sinks", {.sinks = draw.normal({kHeads}, at::kDouble)}});
  all.push_back({"documents of rows",
                 {.causal = true, .row_cu_seqlens = at::tensor({0, 20, 70, 0, 3, 40}, at::kLong).view({kBatch, 3})}});
  return all;
}

Tensors operands(at::ScalarType type) {
  Draw draw(3);
  Tensors all;
  for (const std::int64_t heads : {kHeads, kGroups, kGroups, kHeads}) {
    all.push_back(draw.normal({kBatch, heads, kLength, kFeatures}, at::kDouble).to(type));
  }
  return all;  // query, key, value, gradient of the result
}

Computation computation(const Case& c) {
  return with_gradients([options = c.options](const Tensors& in) {
    auto own = options;
    for (at::Tensor* t : {&own.mask, &own.sinks}) {
      if (t->defined() && t->is_floating_point()) *t = t->to(in[0].scalar_type());
    }
    return attention(in[0], in[1], in[2], own);
  });
}

// Without a scope, on regular tensors.
Tensors by_aten(const Case& c, const Tensors& in) {
  Tensors wide;
  for (const at::Tensor& t : in) wide.push_back(t.to(at::kDouble));
  return computation(c)(wide);
}

TEST(BitIdenticalAttention, ValuesAreThoseOfFloat64) {
  const std::map<at::ScalarType, double> bounds{{at::kDouble, 1e-12}, {at::kFloat, 2e-5}, {at::kBFloat16, 5e-2}};
  for (const Case& c : cases()) {
    for (const auto& [type, bound] : bounds) {
      const auto in = operands(type);
      const auto expected = by_aten(c, in), actual = on_one_device(computation(c), in, 2);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto worst = (actual[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
        EXPECT_LT(worst, bound) << c.name << " of " << type << ", result " << i;
        EXPECT_EQ(actual[i].scalar_type(), type);
      }
    }
  }
}

TEST(BitIdenticalAttention, SplitSequencesHaveTheBitsOfOneDevice) {
  const std::vector<Placements> layouts{{Shard(2)}, {ZigzagShard(2)}, {Shard(0)}, {Shard(1)}};
  for (const Case& c : cases()) {
    const auto in = operands(at::kFloat);
    const auto expected = on_one_device(computation(c), in, 1, 8);
    for (const int ranks : {2, 3}) {
      on_mesh({ranks}, [&](const DeviceMesh& mesh) {
        for (const Placements& layout : layouts) {
          const auto actual = run_placed(mesh, computation(c), in, std::vector<Placements>(in.size(), layout), 8);
          require_same_bits(actual, expected, c.name + " on " + mesh.str() + to_string(layout));
        }
      });
    }
  }
}

std::int64_t bytes_moved(const std::function<void()>& run) {
  std::int64_t bytes = 0;
  const EventListener listener([&](const Event& event) { bytes += event.bytes; }, {Event::Kind::collective});
  run();
  return bytes;
}

// Forward gathers keys and values; backward does so again and gathers their gradients. Queries never move.
TEST(BitIdenticalAttention, QueriesStayWhereShardsEndAtBlocks) {
  constexpr std::int64_t kTokens = 64, kBytes = kTokens * 2 * 8 * 4 / 2;  // what a rank lacks of one tensor
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const BitIdentical scope(16);
    const auto place = [&] { return distribute_tensor(at::ones({1, 2, kTokens, 8}), mesh, {Shard(2)}); };
    const at::Tensor q = place().requires_grad_(), k = place().requires_grad_(), v = place().requires_grad_();
    at::Tensor out;
    EXPECT_EQ(bytes_moved([&] { out = at::scaled_dot_product_attention(q, k, v); }), 2 * kBytes);
    const auto of_nodes = 2 * (2 * kBytes);  // each rank has a node of all keys
    EXPECT_EQ(bytes_moved([&, grad = place()] { out.backward(grad); }), 2 * kBytes + of_nodes);
  });
}

}  // namespace
}  // namespace dtensor::test
