// Flash attention in a BitIdentical scope. A row of queries takes the tiles of its keys in their order and does not
// depend on the rows beside it.
#include "ops/local_kernels/bit_identical/attention.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "internal/bit_identical.h"
#include "internal/simulated.h"

namespace dtensor {
namespace bit_identical {
namespace {

std::vector<std::int64_t> positions_of(const Segments& segments) {
  std::vector<std::int64_t> positions;
  for (const auto& s : segments) {
    for (std::int64_t i = 0; i < s.length; ++i) positions.push_back(s.offset + i);
  }
  return positions;
}

}  // namespace

at::Tensor in_sum_type(const at::Tensor& t) { return t.to(bit_identical::sum_type(t.scalar_type())).contiguous(); }

AttentionOperands attention_operands(const LocalCall& call, const LocalArgs& args) {
  AttentionOperands o;
  const auto query = args.tensor("query"), mask = args.tensor("attn_mask");
  TORCH_CHECK_NOT_IMPLEMENTED(!is_simulated(query), call.info.name(), " in a BitIdentical scope: no dry runs");
  o.q = in_sum_type(query), o.k = in_sum_type(args.tensor("key")), o.v = in_sum_type(args.tensor("value"));
  if (mask.defined()) {
    o.mask = mask.to(o.q.scalar_type()).expand({o.q.size(0), o.q.size(1), o.queries(), o.keys()});
  }
  o.positions = positions_of(own_segments(args.spec("query"), 2, args.global_sizes("query")[2]));
  const auto& scale = args.value("scale");
  o.scale = scale.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(3))) : scale.toDouble();
  o.causal = args.flag("is_causal");
  return o;
}

}  // namespace bit_identical

namespace {

using namespace bit_identical;

// The result of one head: the softmax is rescaled from tile to tile.
template <class T>
class ForwardHead {
 public:
  ForwardHead(const AttentionOperands& o, std::int64_t batch, std::int64_t head, T* out, T* lse)
      : o_(o), batch_(batch), head_(head), out_(out), lse_(lse), tile_(o) {
    const auto of_keys = batch * o.k.size(1) + head / o.group();
    keys_ = o.k.const_data_ptr<T>() + of_keys * o.keys() * o.k.size(3);
    values_ = o.v.const_data_ptr<T>() + of_keys * o.keys() * o.v.size(3);
    queries_ = o.q.const_data_ptr<T>() + (batch * o.q.size(1) + head) * o.queries() * o.q.size(3);
    transpose_keys();
  }

  void run() {
    for (const auto& rows : o_.blocks) run_block(rows);
  }

 private:
  void transpose_keys() {
    const std::int64_t size = o_.k.size(3) * kKeys;
    transposed_.resize(static_cast<std::size_t>(o_.tiles() * size));
    for (std::int64_t j = 0; j < o_.tiles(); ++j) {
      const T* tile = padded_rows(keys_, o_.keys(), j * kKeys, kKeys, o_.k.size(3), padded_);
      transpose(tile, o_.k.size(3), kKeys, o_.k.size(3), transposed_.data() + j * size, kKeys);
    }
  }

  void run_block(const Contracted::Range& rows) {
    const T lowest = -std::numeric_limits<T>::infinity();
    const std::int64_t features = o_.v.size(3);
    top_.assign(static_cast<std::size_t>(o_.block), lowest);
    sum_.assign(static_cast<std::size_t>(o_.block), T(0));
    result_.assign(static_cast<std::size_t>(o_.block * features), T(0));
    std::vector<T> copy;
    const T* q = padded_rows(queries_, o_.queries(), rows.begin, o_.block, o_.q.size(3), copy);
    for (std::int64_t j = 0; j < o_.tiles(); ++j) {
      if (!tile_.is_seen(rows, j)) continue;
      tile_.compute(q, transposed_.data() + j * o_.k.size(3) * kKeys, batch_, head_, rows, j);
      add_tile(padded_rows(values_, o_.keys(), j * kKeys, kKeys, features, padded_));
    }
    store(rows);
  }

  void add_tile(const T* values) {
    const std::int64_t features = o_.v.size(3);
    for (std::int64_t i = 0; i < o_.block; ++i) rescale_row(static_cast<std::size_t>(i));
    tile_.exponentiate();
    for (std::int64_t i = 0; i < o_.block; ++i) {
      sum_[static_cast<std::size_t>(i)] += sum_of_row<T>(kKeys, [&](std::int64_t c) { return tile_.row(i)[c]; });
    }
    multiply_block(o_.block, features, kKeys, tile_.values(), kKeys, values, result_.data(), /*adds=*/true);
  }

  // Subtracts the largest score of a row so far. A row without a visible key keeps zeros.
  void rescale_row(std::size_t i) {
    T* scores = tile_.row(static_cast<std::int64_t>(i));
    const T before = top_[i];
    for (std::int64_t c = 0; c < kKeys; ++c) top_[i] = std::max(top_[i], scores[c]);
    const T shift = std::isinf(top_[i]) && top_[i] < 0 ? T(0) : top_[i];
    for (std::int64_t c = 0; c < kKeys; ++c) scores[c] -= shift;
    if (before == top_[i]) return;
    const T factor = std::exp(before - shift);
    sum_[i] *= factor;
    T* result = result_.data() + static_cast<std::int64_t>(i) * o_.v.size(3);
    for (std::int64_t c = 0; c < o_.v.size(3); ++c) result[c] *= factor;
  }

  void store(const Contracted::Range& rows) {
    const std::int64_t features = o_.v.size(3);
    for (std::int64_t i = 0; i < rows.length; ++i) {
      const T sum = sum_[static_cast<std::size_t>(i)];
      lse_[rows.begin + i] = top_[static_cast<std::size_t>(i)] + std::log(sum);
      // Adding zero makes zeros positive, whatever hidden keys added.
      for (std::int64_t c = 0; c < features; ++c) {
        out_[(rows.begin + i) * features + c] = sum == 0 ? T(0) : result_[i * features + c] / sum + T(0);
      }
    }
  }

  const AttentionOperands& o_;
  std::int64_t batch_, head_;
  T *out_, *lse_;
  ScoreTile<T> tile_;
  const T *keys_, *values_, *queries_;
  std::vector<T> transposed_, padded_, top_, sum_, result_;
};

// Blocks of the local rows: a query's row of the result does not depend on where blocks begin.
std::vector<Contracted::Range> blocks_of(std::int64_t rows, std::int64_t block) {
  std::vector<Contracted::Range> blocks;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    blocks.push_back({begin / block, begin, std::min(block, rows - begin)});
  }
  return blocks;
}

void attention(LocalCall& call) {
  const LocalArgs args(call);
  AttentionOperands o = attention_operands(call, args);
  o.block = bit_identical_block();
  o.blocks = blocks_of(o.queries(), o.block);
  const auto heads = o.q.size(1);
  const at::Tensor out = at::empty({o.q.size(0), heads, o.queries(), o.v.size(3)}, o.q.options());
  const at::Tensor lse = at::empty({o.q.size(0), heads, o.queries()}, o.q.options());
  AT_DISPATCH_FLOATING_TYPES(o.q.scalar_type(), "attention in a BitIdentical scope", [&] {
    auto* to = out.mutable_data_ptr<scalar_t>();
    auto* sums = lse.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, o.q.size(0) * heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        ForwardHead<scalar_t>(o, i / heads, i % heads, to + i * o.queries() * o.v.size(3), sums + i * o.queries())
            .run();
      }
    });
  });
  set_results(call, {out.to(call.outputs[0]->dtype), lse});
}

}  // namespace

void add_tiled_attention_kernels(LocalKernels& kernels) { kernels.emplace("tiled_attention", attention); }

}  // namespace dtensor
