// Layers with a state along the sequence, written in ATen for one device. Split along the sequence they give the same
// results. Ranks exchange states and the rows before a short convolution, independent of the length.
#include <gtest/gtest.h>

#include "dtensor/dtensor.h"
#include "dtensor/events.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kHeads = 2, kSize = 4, kState = 3, kKernel = 4, kChunks = 8;
constexpr std::int64_t kHidden = kHeads * kSize;

using Tensors = std::vector<at::Tensor>;
using Layer = std::function<at::Tensor(const at::Tensor&, const Tensors&)>;

// As in models: padded at the left, one filter for each channel. x: [batch, sequence, channels]
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& filter) {
  const at::Tensor padded = at::constant_pad_nd(x.transpose(1, 2), {kKernel - 1, 0});
  return at::silu(at::conv1d(padded, filter, {}, 1, at::IntArrayRef{0}, 1, filter.size(0))).transpose(1, 2);
}

at::Tensor chunked(const at::Tensor& x, at::IntArrayRef inner) {
  std::vector<std::int64_t> sizes{x.size(0), kChunks, x.size(1) / kChunks};
  sizes.insert(sizes.end(), inner.begin(), inner.end());
  return x.view(sizes);
}

// exp of the sums of a[j + 1 .. i] below the diagonal, 0 above it: the decay from step j to step i.
at::Tensor decays(const at::Tensor& sums, const at::Tensor& sums_from, std::int64_t diagonal) {
  const std::int64_t n = sums.size(-1);
  const at::Tensor seen = at::ones({n, n}, at::kBool).tril(diagonal);
  const at::Tensor difference = sums.unsqueeze(-1) - sums_from.unsqueeze(-2);
  return at::where(seen, difference, at::scalar_tensor(-INFINITY, sums.options().device(at::kCPU))).exp();
}

// Mamba-2 (arXiv:2405.21060, listing 1): attention within chunks, states between chunks.
at::Tensor selective_scan(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  const at::Tensor X = chunked(x, {kHeads, kSize}), B = chunked(b, {kState}), C = chunked(c, {kState});
  const at::Tensor sums = chunked(a, {kHeads}).permute({0, 1, 3, 2}).cumsum(-1);  // [b, chunk, h, l]
  const at::Tensor within = at::matmul(C, B.transpose(2, 3)).unsqueeze(2) * decays(sums, sums, 0);
  const at::Tensor rows = X.permute({0, 1, 3, 2, 4});  // [b, chunk, h, l, p]
  const at::Tensor near = at::matmul(within, rows);
  const at::Tensor total = sums.select(-1, sums.size(-1) - 1);  // [b, chunk, h]
  const at::Tensor to_end = (total.unsqueeze(-1) - sums).exp().unsqueeze(-1);
  const at::Tensor states = at::matmul(B.transpose(2, 3).unsqueeze(2), rows * to_end);  // [b, chunk, h, n, p]
  const at::Tensor until = total.cumsum(1).permute({0, 2, 1});                          // [b, h, chunk]
  const at::Tensor between = decays(until - total.permute({0, 2, 1}), until, -1);       // [b, h, to, from]
  const at::Tensor flat = states.permute({0, 2, 1, 3, 4}).flatten(3);                   // [b, h, chunk, n p]
  const at::Tensor entering = at::matmul(between, flat).unflatten(3, {kState, kSize}).permute({0, 2, 1, 3, 4});
  const at::Tensor far = at::matmul(C.unsqueeze(2), entering) * sums.exp().unsqueeze(-1);
  return (near + far).permute({0, 1, 3, 2, 4}).reshape({x.size(0), x.size(1), kHidden});
}

at::Tensor mamba(const at::Tensor& u, const Tensors& w) {
  const at::Tensor x = short_convolution(u.matmul(w[0]), w[1]);
  const at::Tensor step = -at::softplus(u.matmul(w[2]));
  const at::Tensor y = selective_scan(x, step, u.matmul(w[3]), u.matmul(w[4]));
  return (y * at::silu(u.matmul(w[5]))).matmul(w[6]);
}

Tensors mamba_weights(Draw& draw) {
  return {draw.normal({kHidden, kHidden}), draw.normal({kHidden, 1, kKernel}), draw.normal({kHidden, kHeads}),
          draw.normal({kHidden, kState}),  draw.normal({kHidden, kState}),     draw.normal({kHidden, kHidden}),
          draw.normal({kHidden, kHidden})};
}

// The gated delta rule S <- g S (1 - b k k^T) + b v k^T by chunks (arXiv:2412.06464): a triangular system within a
// chunk, and S <- T_c S + U_c from chunk to chunk.
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                      const at::Tensor& gate) {
  const auto heads = [](const at::Tensor& t) { return chunked(t, {kHeads, kSize}).permute({0, 1, 3, 2, 4}); };
  const at::Tensor Q = heads(q), K = heads(k), V = heads(v);
  const at::Tensor b = chunked(beta, {kHeads}).permute({0, 1, 3, 2}).unsqueeze(-1);
  const at::Tensor sums = chunked(gate, {kHeads}).permute({0, 1, 3, 2}).cumsum(-1);
  const std::int64_t length = Q.size(3);
  const at::Tensor decay = decays(sums, sums, 0), strict = decays(sums, sums, -1);
  const at::Tensor system = at::eye(length, at::kDouble) + at::matmul(K * b, K.transpose(-1, -2)) * strict;
  const at::Tensor solved = at::linalg_solve_triangular(system, at::cat({V * b, K * b * sums.exp().unsqueeze(-1)}, -1),
                                                        /*upper=*/false);
  const at::Tensor U = solved.narrow(-1, 0, kSize), W = solved.narrow(-1, kSize, kSize);
  const at::Tensor total = sums.select(-1, length - 1).unsqueeze(-1);
  const at::Tensor to_end = (K * (total - sums).exp().unsqueeze(-1)).transpose(-1, -2);  // [.., size, l]
  const at::Tensor carried = at::eye(kSize, at::kDouble) * total.exp().unsqueeze(-1) - at::matmul(to_end, W);
  const at::Tensor added = at::matmul(to_end, U);
  Tensors states{at::zeros({q.size(0), kHeads, kSize, kSize}, at::kDouble)};
  const auto T = carried.unbind(1), A = added.unbind(1);  // Small: one matrix for each chunk.
  for (std::int64_t c = 0; c + 1 < kChunks; ++c) states.push_back(at::matmul(T[c], states.back()) + A[c]);
  states[0] = states[1] * 0;
  const at::Tensor entering = at::stack(states, 1);
  const at::Tensor fresh = U - at::matmul(W, entering);
  const at::Tensor far = at::matmul(Q * sums.exp().unsqueeze(-1), entering);
  const at::Tensor y = far + at::matmul(at::matmul(Q, K.transpose(-1, -2)) * decay, fresh);
  return y.permute({0, 1, 3, 2, 4}).reshape({q.size(0), q.size(1), kHidden});
}

at::Tensor gated_delta(const at::Tensor& u, const Tensors& w) {
  const auto unit = [](const at::Tensor& x) {
    const at::Tensor heads = x.unflatten(-1, {kHeads, kSize});
    return (heads / heads.square().sum(-1, true).add(1e-3).sqrt()).flatten(2);
  };
  const at::Tensor q = unit(short_convolution(u.matmul(w[0]), w[1]));
  const at::Tensor k = unit(short_convolution(u.matmul(w[2]), w[3]));
  const at::Tensor v = short_convolution(u.matmul(w[4]), w[5]);
  return delta_rule(q, k, v, at::sigmoid(u.matmul(w[6])), -at::softplus(u.matmul(w[7]))).matmul(w[8]);
}

Tensors delta_weights(Draw& draw) {
  Tensors w;
  for (int i = 0; i < 3; ++i) {
    w.push_back(draw.normal({kHidden, kHidden}));
    w.push_back(draw.normal({kHidden, 1, kKernel}));
  }
  w.push_back(draw.normal({kHidden, kHeads}));
  w.push_back(draw.normal({kHidden, kHeads}));
  w.push_back(draw.normal({kHidden, kHidden}));
  return w;
}

// y and all gradients of the sum of y * y. `between` runs between forward and backward.
Tensors run(const Layer& layer, const at::Tensor& u, const Tensors& weights,
            const std::function<void()>& between = {}) {
  const at::Tensor y = layer(u, weights);
  if (between) between();
  y.square().sum().backward();
  Tensors all{y.detach(), u.grad()};
  for (const auto& w : weights) all.push_back(w.grad());
  return all;
}

at::Tensor leaf(const at::Tensor& t) { return t.detach().clone().requires_grad_(); }

struct Bytes {
  std::int64_t forward, all;
};

// Compares with one device; returns the most bytes that a rank received.
Bytes compare(const Layer& layer, Tensors (*make)(Draw&), std::int64_t ranks, std::int64_t batch, std::int64_t length,
              const Placement& placement) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks)), forward = bytes;
  on_mesh({ranks}, [&](const DeviceMesh& mesh) {
    Draw draw(3);
    const at::Tensor u = draw.normal({batch, length, kHidden});
    const Tensors weights = make(draw);
    Tensors regular, placed;
    for (const auto& w : weights) {
      regular.push_back(leaf(w));
      placed.push_back(at::Tensor(distribute_tensor(w, mesh, {Replicate()})).requires_grad_());
    }
    const Tensors expected = run(layer, leaf(u), regular);
    const at::Tensor mine = at::Tensor(distribute_tensor(u, mesh, {placement})).requires_grad_();
    const auto rank = static_cast<std::size_t>(mesh.communicator().rank());
    auto& received = bytes[rank];
    Tensors got;
    {
      const EventListener listener([&](const Event& e) { received += e.bytes; }, {Event::Kind::collective});
      got = run(layer, mine, placed, [&] { forward[rank] = received; });
    }
    EXPECT_EQ(DTensor(got[0]).placements(), (Placements{placement}));
    for (std::size_t i = 0; i < got.size(); ++i) expect_close(got[i], expected[i], "tensor " + std::to_string(i), 1e-8);
  });
  return {*std::max_element(forward.begin(), forward.end()), *std::max_element(bytes.begin(), bytes.end())};
}

struct Case {
  const char* name;
  Layer layer;
  Tensors (*weights)(Draw&);
};

class StateSpace : public testing::TestWithParam<Case> {};

// All states four times, rows before convolutions three times (with their gradients), and all-reduced gradients of
// weights.
std::int64_t most_bytes(const Case& c, std::int64_t batch) {
  constexpr std::int64_t item = 8;
  const std::int64_t states = batch * kChunks * kHeads * kSize * std::max(kSize, kState);
  std::int64_t weights = 0, rows = 0;
  Draw draw(3);
  for (const auto& w : c.weights(draw)) {
    weights += w.numel();
    if (w.dim() == 3) rows += batch * (kKernel - 1) * w.size(0);
  }
  return item * (4 * states + 3 * rows + 2 * weights);
}

// For a given number of chunks, communication in forward and backward does not depend on the length of the sequence,
// whether the batch could be split or not.
TEST_P(StateSpace, CommunicatesOnlyStatesAndConvolutionRows) {
  const Case& c = GetParam();
  for (const std::int64_t batch : {1, 2, 4}) {
    for (const std::int64_t ranks : {2, 4}) {
      const Bytes once = compare(c.layer, c.weights, ranks, batch, 64, Shard(1));
      const Bytes twice = compare(c.layer, c.weights, ranks, batch, 128, Shard(1));
      EXPECT_EQ(once.forward, twice.forward) << ranks << " ranks, " << batch;
      EXPECT_EQ(once.all, twice.all) << ranks << " ranks, " << batch;
      EXPECT_LE(once.all, most_bytes(c, batch)) << ranks << " ranks, " << batch;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, StateSpace,
                         testing::Values(Case{"Mamba", mamba, mamba_weights},
                                         Case{"GatedDelta", gated_delta, delta_weights}),
                         [](const auto& c) { return c.param.name; });

// The result is right as well if the shards are not multiples of the chunk size.
TEST_P(StateSpace, UnevenShardsMatchSingleDevice) {
  const Case& c = GetParam();
  compare(c.layer, c.weights, 3, 2, 40, Shard(1));
  compare(c.layer, c.weights, 2, 2, 64, ZigzagShard(1));
}

}  // namespace
}  // namespace dtensor::test
