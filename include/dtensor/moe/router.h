// The router selects experts and weights for each token and computes load-balancing losses. Its results are those of
// the full batch, independent of how tokens are distributed over ranks. An *entry* is one choice of one token, so one
// row for an expert: choice j of token t is entry `t * top_k + j`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// Function from logits to scores.
enum class RouterScore : std::uint8_t { softmax, sigmoid };
// Whether tokens choose experts or experts choose tokens.
enum class RouterChoice : std::uint8_t {
  tokens,       // each token takes its top_k experts
  experts,      // each expert takes its top tokens of the full batch (Zhou et al., 2202.09368)
  round_robin,  // entry i of the batch goes to expert i % experts: forced balance
};

class RoutingStrategy;

// Internal to the library: entries sorted by expert, and counts of entries.
struct SortedBins;
class SharedCounts;

// Options of a router.
struct RouterOptions {
  // Number of experts, and experts per token.
  std::int64_t experts = 8, top_k = 2;
  // Score function, and who chooses.
  RouterScore score = RouterScore::softmax;
  RouterChoice choice = RouterChoice::tokens;
  std::shared_ptr<const RoutingStrategy> strategy = {};  // a user-defined strategy instead of `choice`
  bool normalize = false;                                // the weights of a token sum to one: w / (sum + 1e-20)
  double scale = 1;                                      // factor of the weights
  // Experts form `groups` contiguous groups of equal size. A token chooses from its top_groups best groups, ranked by
  // the sum of a group's two best scores (DeepSeek-V3, 2412.19437).
  std::int64_t groups = 1, top_groups = 1;
  double jitter = 0;  // in training, the gate's input is multiplied by uniform(1 - jitter, 1 + jitter)
  // Loss coefficients. aux_loss: E * sum_e f_e P_e over the batch (Switch, 2101.03961); sequence_aux_loss: the same for
  // each sequence, then the mean (DeepSeek-V3); z_loss: mean of logsumexp(logits)^2 (ST-MoE, 2202.08906).
  double aux_loss = 0, sequence_aux_loss = 0, z_loss = 0;
  // Tokens of a batch that is computed in parts (microbatches): losses of a part are its share, so that those of all
  // parts add up to the batch's. 0: each call has a batch of its own.
  std::int64_t batch_tokens = 0;
  double expert_capacity_factor = 1;  // expert choice: an expert takes int(factor * top_k * tokens / experts) tokens
};

// Positions of this rank's tokens in the batch. The default is a batch on this rank alone.
struct TokenLayout {
  Communicator ranks;          // ranks with different tokens; undefined: this rank alone
  std::int64_t total = -1;     // tokens of all ranks; -1: the router exchanges it if needed
  std::int64_t first = -1;     // number of the first local token; -1: tokens are in order of `ranks`
  at::Tensor index;            // [tokens] number of each token, if not contiguous
  std::int64_t sequences = 1;  // in the batch; tokens are ordered by sequence
  // Sequences with tokens on this rank.
  std::int64_t sequences_here = 1;
  Communicator sequence_ranks;  // ranks with other tokens of the same sequences
  double share = 1;             // factor of the losses: 1 / number of ranks with the same tokens
};

// Selects the experts of tokens: one strategy per RouterChoice, or a user-defined one.
class DTENSOR_API RoutingStrategy {
 public:
  // The selected experts.
  struct Choice {
    at::Tensor experts;  // [tokens, choices] int64, on the scores' device; RouterOptions::experts: none
    // Counts and order of these experts, if known; otherwise they are computed once on demand.
    std::shared_ptr<const SortedBins> order = {};
    bool complete = true;      // every entry has an expert
    bool round_robin = false;  // entry i of the batch has expert i % experts; EqualAllToAll requires it
    bool same_width = true;    // all ranks have the same number of choices per token
  };
  virtual ~RoutingStrategy() = default;
  // `scores` [tokens, experts] are the router's scores of this rank's tokens. `bias` [experts], if defined, is added
  // for the choice only. Called without gradient recording. May be collective over layout.ranks, but collectives must
  // not depend on the data.
  virtual Choice choose(const at::Tensor& scores, const RouterOptions& options, const TokenLayout& layout,
                        const at::Tensor& bias) const = 0;
  virtual const char* name() const = 0;
};
// The decision of a router.
struct Routing {
  // Number of experts.
  std::int64_t expert_count = 0;
  at::Tensor experts;                            // [tokens, choices] int64; expert_count: none
  at::Tensor weights;                            // [tokens, choices], differentiable
  at::Tensor scores;                             // [tokens, expert_count], differentiable
  std::shared_ptr<SharedCounts> counts;          // entries per expert on this rank
  at::Tensor loss;                               // this rank's part of the losses; undefined: none
  bool round_robin = false;                      // experts in turn, so counts need no exchange
  bool by_experts = false;                       // the number of choices differs between ranks
  std::shared_ptr<const SortedBins> order = {};  // of the entries, if the strategy knows it
  std::int64_t empty = 0;                        // entries without expert on this rank; -1: unknown on the host
  bool complete = false;                         // every entry has an expert, on all ranks
};

// Auxiliary-loss-free load balancing (2408.15664): after each optimizer step b += rate *
// sign(mean load - load), with the load of all tokens since the last step. Forward passes for
// recomputation do not count.
class DTENSOR_API LoadBalancer {
 public:
  explicit LoadBalancer(std::int64_t experts, double rate, at::TensorOptions options = {});
  // Adds to the load of this step.
  void count(const Routing& routing);
  at::Tensor bias;    // [experts] float
  at::Tensor counts;  // [experts] int64: load of this rank since the last step
  double rate;
};
// Updates all layers in one collective over the ranks with different tokens. Call it after
// each optimizer step.
DTENSOR_API void update_load_balancers(const std::vector<LoadBalancer*>& balancers, const Communicator& ranks);

}  // namespace dtensor
