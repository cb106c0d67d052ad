// Grouped matrix products (_grouped_mm) with every operand split along every dimension, forward and backward, against
// one product per group on one device. Also the bytes moved.
#include <gtest/gtest.h>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "support/errors.h"
#include "support/ranks.h"
// Include after GoogleTest.
#include <rapidcheck.h>

namespace dtensor::test {
namespace {

struct Operands {
  at::Tensor a, b, ends;  // ends: undefined for two batches of matrices
};

// Multiplies groups of rows, which may be empty, by one matrix each.
at::Tensor expected(const Operands& x, const at::Tensor& a, const at::Tensor& b) {
  if (!x.ends.defined()) return a.bmm(b);
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t g = 0; g < x.ends.numel(); ++g) {
    const auto end = x.ends[g].item<std::int64_t>();
    const auto left = a.dim() == 3 ? a[g] : a.slice(b.dim() == 3 ? 0 : 1, begin, end);
    const auto right = b.dim() == 3 ? b[g] : b.slice(a.dim() == 3 ? 1 : 0, begin, end);
    parts.push_back(left.mm(right));
    begin = end;
  }
  if (a.dim() == 2 && b.dim() == 2) return at::stack(parts);
  return at::cat(parts, a.dim() == 3 ? 1 : 0);
}

at::Tensor any_ends(Draw& d, std::int64_t groups, std::int64_t rows) {
  auto ends = std::get<0>(d.integers({groups}, rows + 1).sort());
  ends[-1] = rows;
  return ends.to(at::kInt);
}

// Includes rows that are not multiples of 16 bytes, and empty groups.
Operands any_operands(Draw& d, at::ScalarType dtype) {
  const auto groups = d.integer(1, 4), rows = d.integer(0, 9);
  const auto m = d.integer(1, 9), k = d.integer(1, 9), n = d.integer(1, 9);
  const auto ends = any_ends(d, groups, rows);
  switch (d.integer(0, 3)) {
    case 0:
      return {d.normal({rows, k}, dtype), d.normal({groups, k, n}, dtype), ends};
    case 1:
      return {d.normal({groups, m, k}, dtype), d.normal({rows, k}, dtype).t(), ends};
    case 2:
      return {d.normal({rows, m}, dtype).t(), d.normal({rows, n}, dtype), ends};
    default:
      return {d.normal({groups, m, k}, dtype), d.normal({groups, k, n}, dtype), {}};
  }
}

std::optional<at::Tensor> given(const at::Tensor& ends) { return ends.defined() ? std::optional(ends) : std::nullopt; }

void check(const DeviceMesh& mesh, Draw d, const Operands& x, bool partial, double tolerance) {
  const auto at_a = d.placements_of(mesh, x.a.sizes(), partial), at_b = d.placements_of(mesh, x.b.sizes(), partial);
  const auto text = to_string(at_a) + ", " + to_string(at_b);
  const auto a = distribute_tensor(x.a, mesh, at_a).requires_grad_(!partial);
  const auto b = distribute_tensor(x.b, mesh, at_b).requires_grad_(!partial);
  const bool everywhere = x.ends.defined() && d.coin();
  const auto ends = everywhere ? distribute_tensor(x.ends, mesh, Placements(at_a.size())) : x.ends;
  const auto regular_a = x.a.clone().requires_grad_(), regular_b = x.b.clone().requires_grad_();
  const auto result = at::_grouped_mm(a, b, given(ends)), full = expected(x, regular_a, regular_b);
  expect_close(result.detach(), full.detach(), text, tolerance);
  if (partial) return;
  const auto weight = Draw(3).normal(full.sizes().vec(), x.a.scalar_type());
  (result * weight).sum().backward();
  (full * weight).sum().backward();
  expect_close(a.grad(), regular_a.grad(), text + ": gradient of self", tolerance);
  expect_close(b.grad(), regular_b.grad(), text + ": gradient of mat2", tolerance);
}

TEST(GroupedProducts, EqualOneDeviceOnEveryLayout) {
  EXPECT_TRUE(rc::check("grouped products and their gradients", [] {
    Draw d(*rc::gen::arbitrary<std::uint64_t>());
    const bool bf16 = d.integer(0, 4) == 0;
    const auto x = any_operands(d, bf16 ? at::kBFloat16 : at::kFloat);
    const Shape shape = std::vector<Shape>{{2}, {3}, {2, 2}}[static_cast<std::size_t>(d.integer(0, 2))];
    const bool partial = d.coin();
    on_mesh(shape, [&](const DeviceMesh& mesh) { check(mesh, d, x, partial, bf16 ? 0.2 : 1e-4); });
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Bytes that this rank received.
std::int64_t bytes_received(const std::function<void()>& body) {
  std::int64_t bytes = 0;
  const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
  body();
  return bytes;
}

constexpr std::int64_t kExperts = 4, kRows = 16, kIn = 8, kOut = 12, kBytes = 4;

// A layer of experts: rows x, a matrix per expert, kRows / kExperts rows each.
struct Layer {
  Placement x, weight;
  std::int64_t forward, backward;  // bytes
};

TEST(GroupedProducts, BytesOfALayerOfExperts) {
  const std::int64_t ranks = 2, rows = kRows * kIn * kBytes;
  const Layer layers[] = {
      {Replicate(), Replicate(), 0, 0},
      {Replicate(), Shard(0), 0, rows},                            // expert parallel: the gradient of x is Partial
      {Replicate(), Shard(2), 0, rows},                            // columns: the gradient of x is Partial
      {Shard(0), Shard(0), rows / ranks, 2 * rows / ranks},        // x is gathered, its gradient scattered
      {Shard(0), Replicate(), 0, kExperts * kIn * kOut * kBytes},  // rows: gradient of the weights is reduced
      {Shard(1), Shard(1), 0, 0},                                  // both split along the contracted dimension
  };
  const auto x = Draw(1).normal({kRows, kIn}, at::kFloat), w = Draw(2).normal({kExperts, kIn, kOut}, at::kFloat);
  const auto ends = at::arange(1, kExperts + 1, at::kInt) * (kRows / kExperts);
  for (const Layer& layer : layers) {
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      const auto text = to_string({layer.x, layer.weight});
      const auto a = distribute_tensor(x, mesh, {layer.x}).requires_grad_();
      const auto b = distribute_tensor(w, mesh, {layer.weight}).requires_grad_();
      const auto all = distribute_tensor(ends, mesh, {Replicate()});
      at::Tensor y;
      EXPECT_EQ(bytes_received([&] { y = at::_grouped_mm(a, b, all); }), layer.forward) << text << " forward";
      const Placement own = DTensor(y).placements()[0];
      const auto grad = distribute_tensor(at::ones({kRows, kOut}), mesh, {own.is_shard() ? own : Replicate()});
      EXPECT_EQ(bytes_received([&] { y.backward(grad); }), layer.backward) << text << " backward";
      EXPECT_EQ(DTensor(b.grad()).placements(), (Placements{layer.weight})) << text;
    });
  }
}

// The error is equal on every rank.
TEST(GroupedProducts, InvalidOperandsAreNamed) {
  const auto x = at::ones({4, 8}), w = at::ones({2, 8, 8}), ends = at::tensor({2, 4}, at::kInt);
  struct Mistake {
    at::Tensor a, b, ends;
    const char* says;
  };
  const Mistake mistakes[] = {
      {x, w, {}, "expected `offs` where an operand is a matrix"},
      {x, w, ends.to(at::kLong), "expected `offs` of one dimension and int32"},
      {x, at::ones({3, 8, 8}), ends, "expected 2 matrices"},
      {x, at::ones({2, 4, 8}), ends, "expected as many columns as rows"},
      {x.to(at::kDouble), w, ends, "expected two operands of float32"},
      {x.unsqueeze(0).unsqueeze(0), w, ends, "expected operands of 2 or 3 dimensions"},
  };
  for (const Mistake& mistake : mistakes) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto b = distribute_tensor(mistake.b, mesh, {Shard(0)});
      const auto error = error_of([&] { at::_grouped_mm(mistake.a, b, given(mistake.ends)); });
      EXPECT_NE(error.find(mistake.says), std::string::npos) << error;
    });
  }
}

}  // namespace
}  // namespace dtensor::test
