// Attention over a sequence that is split between ranks. at::scaled_dot_product_attention of DTensors that are sharded
// along the sequence takes the same way by itself; what is here chooses that way, and adds what ATen cannot say.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// How ranks that each hold a part of the sequence come to see all of it.
enum class AttentionStrategy : std::uint8_t {
  automatic,  // the cheapest of the others by bytes, operations and balance; explain() shows the prices
  ring,       // blocks of keys and values go round while the block at hand is computed
  gather,     // keys and values are gathered, in the backward pass again
  ulysses,    // all_to_all from the sequence to heads, and back
};

// As it is parsed and printed: "ring", "gather", "ulysses", "auto".
DTENSOR_API const char* to_string(AttentionStrategy strategy);
// "auto", "ring", "gather" or "ulysses"; an error with the text for any other.
DTENSOR_API AttentionStrategy parse_attention_strategy(std::string_view name);

// While it lives, attention on this thread takes that strategy on every mesh axis that splits the sequence. Backward
// does what forward did.
class DTENSOR_API AttentionStrategyScope {
 public:
  explicit AttentionStrategyScope(AttentionStrategy strategy);

  // The innermost of this thread.
  static AttentionStrategy current();

 private:
  std::shared_ptr<const void> scope_;
};

// What attention() takes beside queries, keys and values.
struct AttentionOptions {
  // Broadcasts to [B, H, L, S]; bool (true: seen) or floating (added to the scores). Plain tensors count as Replicate.
  at::Tensor mask = {};
  bool causal = false;               // query i sees keys j <= i, counted from the first of each, as in ATen
  double dropout = 0;                // of the weights
  std::optional<double> scale = {};  // of the scores; 1 / sqrt(E) by default
  std::int64_t window = 0;           // > 0: query i sees keys with |i - j| < window
  // Position of each document's first token, ascending from 0: tokens see their own document. Needs L = S.
  std::vector<std::int64_t> documents = {};
  // [H]: a further score for each head that takes part in the softmax and has no value (attention sinks). Plain tensors
  // count as Replicate.
  at::Tensor sinks = {};
  // Documents of each row of the batch, instead of `documents`: int64 [B, D], the positions of row b's documents and
  // then S, as often as it takes to fill the row. Plain tensors count as Replicate. No row's scores are ever a matrix
  // of S x S in memory because of them, as those of a mask are.
  at::Tensor row_cu_seqlens = {};
};

// Softmax(q k^T scale + masks) v. q: [B, H, L, E], k: [B, G, S, E], v: [B, G, S, F] with H a multiple of G (groups of
// query heads share a head of keys and values); the result: [B, H, L, F] in q's dtype and placements. Floating dtypes;
// half types are merged in float. Autocast casts q, k and v as those of ATen's operator. A query that sees nothing gets
// zeros. Plain tensors are computed by plain ATen, which is what the result on DTensors equals. Differentiable, by
// recomputation twice; not with respect to a bool mask.
DTENSOR_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionOptions& options = {});

}  // namespace dtensor
