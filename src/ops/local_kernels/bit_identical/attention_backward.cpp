// The gradient of attention in a BitIdentical scope. Gradients of keys and values are sums by the tree over blocks of
// queries; that of a query is a sum over tiles of keys in their order.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "ops/local_kernels/bit_identical/attention.h"

namespace dtensor {
namespace {

using namespace bit_identical;

// Operands and results of the gradient.
struct Gradients {
  at::Tensor grad, out, lse;  // given
  at::Tensor q;               // [B, H, L, E]
  at::Tensor k, v;            // a row for each node of the tree: [nodes, B, G, S, features]
  const Contracted& leaves;
};

// The gradients of one head of keys and of the query heads that share it.
template <class T>
class BackwardHead {
 public:
  BackwardHead(const AttentionOperands& o, const Gradients& g, std::int64_t index)
      : o_(o),
        g_(g),
        index_(index),
        batch_(index / o.k.size(1)),
        first_(index % o.k.size(1) * o.group()),
        weights_(o),
        scores_(o),
        dot_(static_cast<std::size_t>(o.group() * o.queries())) {}

  void run() {
    for (std::int64_t h = 0; h < o_.group(); ++h) add_dots(h);
    for (std::int64_t j = 0; j < o_.tiles(); ++j) run_tile(j);
  }

 private:
  // The matrix of query head `h` of the group in a tensor [B, H, L, ...].
  template <class Pointer>
  Pointer head_of(Pointer data, const at::Tensor& t, std::int64_t h) const {
    return data + (batch_ * o_.q.size(1) + first_ + h) * c10::multiply_integers(t.sizes().slice(2));
  }
  const T* matrix(const at::Tensor& t, std::int64_t h) const { return head_of(t.const_data_ptr<T>(), t, h); }

  // Sums of grad times out over features.
  void add_dots(std::int64_t h) {
    const std::int64_t features = o_.v.size(3);
    const T *grad = matrix(g_.grad, h), *out = matrix(g_.out, h);
    for (std::int64_t i = 0; i < o_.queries(); ++i, grad += features, out += features) {
      dot_[static_cast<std::size_t>(h * o_.queries() + i)] =
          sum_of_row<T>(features, [&](std::int64_t c) { return grad[c] * out[c]; });
    }
  }

  void run_tile(std::int64_t j) {
    const std::int64_t e = o_.k.size(3), f = o_.v.size(3);
    const auto pad = [&](const at::Tensor& t, std::int64_t width, std::vector<T>& copy, std::vector<T>& transposed) {
      const T* all = t.const_data_ptr<T>() + index_ * o_.keys() * width;
      const T* tile = padded_rows(all, o_.keys(), j * kKeys, kKeys, width, copy);
      transposed.resize(static_cast<std::size_t>(kKeys * width));
      transpose(tile, width, kKeys, width, transposed.data(), kKeys);
      return tile;
    };
    const T* keys = pad(o_.k, e, key_copy_, keys_);
    pad(o_.v, f, value_copy_, values_);
    TreeSum<T> of_keys(g_.leaves.leaves.count, kKeys * e), of_values(g_.leaves.leaves.count, kKeys * f);
    for (const auto& rows : o_.blocks) {
      T *dk = of_keys.next(), *dv = of_values.next();
      std::fill(dk, dk + kKeys * e, T(0));
      std::fill(dv, dv + kKeys * f, T(0));
      for (std::int64_t h = 0; h < o_.group() && weights_.is_seen(rows, j); ++h) add_block(rows, h, j, keys, dk, dv);
      of_keys.add({0, rows.leaf}, dk);
      of_values.add({0, rows.leaf}, dv);
    }
    store(of_keys, g_.k, j), store(of_values, g_.v, j);
  }

  void add_block(const Contracted::Range& rows, std::int64_t h, std::int64_t j, const T* keys, T* dk, T* dv) {
    const std::int64_t e = o_.k.size(3), f = o_.v.size(3), block = o_.block;
    const auto in_block = [&](const at::Tensor& t, std::int64_t width, std::vector<T>& copy) {
      return padded_rows(matrix(t, h), rows.begin + rows.length, rows.begin, block, width, copy);
    };
    const T *q = in_block(o_.q, e, query_copy_), *grad = in_block(g_.grad, f, grad_copy_);
    weights_.compute(q, keys_.data(), batch_, first_ + h, rows, j);
    subtract_sums(rows, h);
    weights_.exponentiate();
    add_transposed(weights_.values(), grad, f, dv);
    multiply_block(block, kKeys, f, grad, f, values_.data(), scores_.values(), /*adds=*/false);
    multiply_weights(rows, h);
    add_transposed(scores_.values(), q, e, dk);
    dq_.assign(static_cast<std::size_t>(block * e), T(0));
    multiply_block(block, e, kKeys, scores_.values(), kKeys, keys, dq_.data(), /*adds=*/false);
    T* to = head_of(g_.q.mutable_data_ptr<T>(), g_.q, h) + rows.begin * e;
    for (std::int64_t i = 0; i < rows.length * e; ++i) to[i] += dq_[static_cast<std::size_t>(i)];
  }

  // The logarithm of a row's sum; rows beyond the block, and those without a visible key, have weights of zero.
  void subtract_sums(const Contracted::Range& rows, std::int64_t h) {
    const T* lse = matrix(g_.lse, h) + rows.begin;
    const T lowest = -std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < o_.block; ++i) {
      T* scores = weights_.row(i);
      if (i >= rows.length || lse[i] == lowest) {
        std::fill(scores, scores + kKeys, lowest);
      } else {
        for (std::int64_t c = 0; c < kKeys; ++c) scores[c] -= lse[i];
      }
    }
  }

  // scores = weights (scores - dot) scale. Weights of zero give zero.
  void multiply_weights(const Contracted::Range& rows, std::int64_t h) {
    const auto scale = static_cast<T>(o_.scale);
    const T* dot = dot_.data() + h * o_.queries() + rows.begin;
    for (std::int64_t i = 0; i < o_.block; ++i) {
      T *to = scores_.row(i), *weights = weights_.row(i);
      const T sum = i < rows.length ? dot[i] : T(0);
      for (std::int64_t c = 0; c < kKeys; ++c) to[c] = weights[c] * (to[c] - sum) * scale;
    }
  }

  // to [kKeys, width] += transposed [block, kKeys] times rows [block, width]
  void add_transposed(const T* tile, const T* rows, std::int64_t width, T* to) {
    transposed_.resize(static_cast<std::size_t>(o_.block * kKeys));
    transpose(tile, kKeys, o_.block, kKeys, transposed_.data(), o_.block);
    multiply_block(kKeys, width, o_.block, transposed_.data(), o_.block, rows, to, /*adds=*/true);
  }

  void store(const TreeSum<T>& sum, const at::Tensor& nodes, std::int64_t j) const {
    const std::int64_t width = nodes.size(4), count = std::min(kKeys, o_.keys() - j * kKeys) * width;
    T* to = nodes.mutable_data_ptr<T>() + (index_ * o_.keys() + j * kKeys) * width;
    for (std::size_t node = 0; node < sum.size(); ++node) {
      std::copy(sum.values(node), sum.values(node) + count, to + static_cast<std::int64_t>(node) * nodes.stride(0));
    }
  }

  const AttentionOperands& o_;
  const Gradients& g_;
  std::int64_t index_, batch_, first_;
  ScoreTile<T> weights_, scores_;
  std::vector<T> dot_, keys_, values_, key_copy_, value_copy_, query_copy_, grad_copy_, transposed_, dq_;
};

void attention_backward(LocalCall& call) {
  const LocalArgs args(call);
  AttentionOperands o = attention_operands(call, args);
  const Contracted leaves = contracted_of(call.mesh, args.spec("query"), args.global_sizes("query"), {2});
  o.block = leaves.block, o.blocks = leaves.ranges;
  const auto nodes_like = [&](const at::Tensor& t) {
    const auto nodes = std::ssize(nodes_of(leaves.leaves.own, leaves.leaves.count));
    return at::empty({nodes, t.size(0), t.size(1), t.size(2), t.size(3)}, t.options());
  };
  const Gradients g{in_sum_type(args.tensor("grad_out")),
                    in_sum_type(args.tensor("out")),
                    in_sum_type(args.tensor("logsumexp")),
                    at::zeros_like(o.q),
                    nodes_like(o.k),
                    nodes_like(o.v),
                    leaves};
  AT_DISPATCH_FLOATING_TYPES(o.q.scalar_type(), "the gradient of attention in a BitIdentical scope", [&] {
    at::parallel_for(0, o.k.size(0) * o.k.size(1), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) BackwardHead<scalar_t>(o, g, i).run();
    });
  });
  // Adding zero makes zeros positive, whatever hidden blocks added.
  const auto result = [&](const at::Tensor& t, std::size_t i) { return at::add(t, 0).to(call.outputs[i]->dtype); };
  set_results(call, {result(g.q, 0), result(complete(g.k, leaves.leaves), 1), result(complete(g.v, leaves.leaves), 2)});
}

}  // namespace

void add_tiled_attention_gradient_kernels(LocalKernels& kernels) {
  kernels.emplace("tiled_attention_backward", attention_backward);
}

}  // namespace dtensor
