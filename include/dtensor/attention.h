// Attention over sharded sequences (context parallelism). at::scaled_dot_product_attention on DTensors that are sharded
// along the sequence uses it automatically. This header selects the strategy and adds options that ATen lacks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// How ranks access keys and values of other ranks' sequence shards.
enum class AttentionStrategy : std::uint8_t {
  automatic,  // the cheapest strategy by bytes, operations and balance; explain() shows the costs
  ring,       // blocks of keys and values circulate while ranks compute with the current block
  gather,     // keys and values are all-gathered, again in backward
  ulysses,    // all-to-all from sequence to head sharding, and back
};

// The name of a strategy: "ring", "gather", "ulysses" or "auto".
DTENSOR_API const char* to_string(AttentionStrategy strategy);
// Parses "auto", "ring", "gather" or "ulysses"; throws for any other name.
DTENSOR_API AttentionStrategy parse_attention_strategy(std::string_view name);

// Sets the strategy of attention on this thread for all mesh axes that shard the sequence. Backward uses the strategy
// of forward.
class DTENSOR_API AttentionStrategyScope {
 public:
  explicit AttentionStrategyScope(AttentionStrategy strategy);

  // The strategy of this thread's innermost scope.
  static AttentionStrategy current();

 private:
  std::shared_ptr<const void> scope_;
};

// Options of attention().
struct AttentionOptions {
  // Broadcasts to [B, H, L, S]. bool: true takes part; floating point: added to the scores. Regular tensors count as
  // Replicate.
  at::Tensor mask = {};
  bool causal = false;               // query i attends to keys j <= i, both counted from 0, as in ATen
  double dropout = 0;                // dropout probability of the attention weights
  std::optional<double> scale = {};  // scale of the scores; 1 / sqrt(E) by default
  std::int64_t window = 0;           // if > 0, query i attends to keys with |i - j| < window
  // Start position of each document, ascending from 0: tokens attend within their document. Requires L = S.
  std::vector<std::int64_t> documents = {};
  // Attention sinks [H]: an additional score per head that takes part in the softmax and has no value. Regular tensors
  // count as Replicate.
  at::Tensor sinks = {};
  // Documents of each batch row, instead of `documents`: int64 [B, D] with the start positions of row b's documents,
  // padded with S. Regular tensors count as Replicate. Needs no S x S matrix, unlike a mask.
  at::Tensor row_cu_seqlens = {};
};

// Computes softmax(q k^T scale + masks) v for q [B, H, L, E], k [B, G, S, E] and v [B, G, S, F]. H is a multiple of G
// (grouped-query attention). The result is [B, H, L, F] with the dtype and placements of q.
// Accepts floating dtypes; partial results of half types are merged in float. Autocast applies as to ATen's operator. A
// query without keys gives zeros. Regular tensors are computed by ATen with equal results. Differentiable twice, by
// recomputation; a bool mask has no gradient.
DTENSOR_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionOptions& options = {});

}  // namespace dtensor
