// Gradients of microbatches that are added in turn have the bits of the full batch, or are refused.
#include "bit_identical/bits.h"
#include "support/draws.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kTokens = 16, kFeatures = 32, kBlock = 8;

struct Parts {
  std::vector<std::int64_t> rows;
  bool accepted;
};

// Gradients of an embedding, a norm and two products over the rows of a batch.
Tensors gradients_in_parts(const DeviceMesh& mesh, const std::vector<std::int64_t>& parts,
                           at::ScalarType dtype = at::kFloat) {
  Draw draw(9);
  const std::int64_t rows = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  const Shape square{kFeatures, kFeatures}, features{kFeatures};
  Tensors leaves;
  for (const Shape& shape : {square, features, features, square, features, square}) {
    leaves.push_back(distribute_tensor(draw.normal(shape, dtype), mesh, {Replicate()}).requires_grad_());
  }
  const auto ids = draw.integers({rows, kTokens}, kFeatures);
  const auto grad = draw.normal({rows, kTokens, kFeatures}, dtype);
  std::int64_t first = 0;
  const BitIdentical scope(kBlock);
  for (const auto count : parts) {
    const auto own = [&](const at::Tensor& t) {
      return distribute_tensor(t.narrow(0, first, count).contiguous(), mesh, {Shard(1)});
    };
    const auto x = at::layer_norm(at::embedding(leaves[0], own(ids)), {kFeatures}, leaves[1], leaves[2]);
    at::matmul(at::linear(x, leaves[3], leaves[4]), leaves[5]).backward(own(grad));
    first += count;
  }
  Tensors results;
  for (const at::Tensor& leaf : leaves) results.push_back(full_of(leaf.grad()));
  return results;
}

// The gradient of a weight whose rows are not in sequences.
at::Tensor flat_gradient_in_parts(const DeviceMesh& mesh, std::int64_t rows, bool linear, int parts = 2) {
  Draw draw(9);
  const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}); };
  const at::Tensor weight = place(draw.normal({kFeatures, kFeatures}, at::kFloat)).requires_grad_();
  const auto x = draw.normal({parts * rows, kFeatures}, at::kFloat), grad = draw.normal(x.sizes().vec(), at::kFloat);
  const BitIdentical scope(kBlock);
  for (int i = 0; i < parts; ++i) {
    const auto own = place(x.narrow(0, i * rows, rows).contiguous());
    const auto made = linear ? at::linear(own, weight) : at::mm(own, weight);
    made.backward(place(grad.narrow(0, i * rows, rows).contiguous()));
  }
  return full_of(weight.grad());
}

void expect_refused(const DeviceMesh& mesh, const std::vector<std::int64_t>& parts, at::ScalarType dtype) {
  const auto error = error_of([&] { gradients_in_parts(mesh, parts, dtype); });
  EXPECT_NE(error.find("has no bit-identical form"), std::string::npos) << parts << " " << dtype << ": " << error;
}

TEST(BitIdenticalMicrobatches, HaveTheBitsOfTheBatchOrAreRefused) {
  const std::vector<Parts> table{{{2, 2}, true},        {{4, 2}, true},  {{2, 2, 2}, true}, {{2, 2, 1}, true},
                                 {{1, 1, 1, 1}, false}, {{3, 3}, false}, {{2, 4}, false},   {{2, 1, 1}, false}};
  for (const int ranks : {1, 2}) {
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      for (const auto& [parts, accepted] : table) {
        const auto rows = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
        const auto text = c10::str("parts of ", parts, " rows on ", mesh.str());
        if (accepted) {
          require_same_bits(gradients_in_parts(mesh, parts), gradients_in_parts(mesh, {rows}), text);
          continue;
        }
        expect_refused(mesh, parts, at::kFloat);
      }
      // The next part would begin inside of a block.
      for (const bool linear : {true, false}) {
        EXPECT_NE(error_of([&] { flat_gradient_in_parts(mesh, kBlock + 4, linear); }).find("that is not full"),
                  std::string::npos);
        require_same_bits({flat_gradient_in_parts(mesh, 2 * kBlock, linear)},
                          {flat_gradient_in_parts(mesh, 4 * kBlock, linear, /*parts=*/1)}, "flat rows");
      }
      // The gradient of a part is rounded before the next one is added.
      for (const auto dtype : {at::kBFloat16, at::kHalf}) expect_refused(mesh, {2, 2}, dtype);
    });
  }
}

}  // namespace
}  // namespace dtensor::test
