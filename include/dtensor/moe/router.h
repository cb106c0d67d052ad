// The router: which experts each token goes to and with what weight, and the losses that keep the load even. Everything
// it computes is that of the whole batch, however the tokens are spread over ranks.
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

// What logits become.
enum class RouterScore : std::uint8_t { softmax, sigmoid };
// Who chooses: tokens their experts, or experts their tokens.
enum class RouterChoice : std::uint8_t {
  tokens,       // each token takes its top_k experts
  experts,      // each expert takes its top tokens of the whole batch (Zhou et al., 2202.09368)
  round_robin,  // entry i of the batch goes to expert i modulo experts: forced balance
};

class RoutingStrategy;

// Entries in the order of their experts, as the library keeps it.
struct SortedBins;

// How experts are chosen.
struct RouterOptions {
  // How many there are, and how many a token visits.
  std::int64_t experts = 8, top_k = 2;
  // What logits become, and who chooses.
  RouterScore score = RouterScore::softmax;
  RouterChoice choice = RouterChoice::tokens;
  std::shared_ptr<const RoutingStrategy> strategy = {};  // one of the user's own, in the place of `choice`
  bool normalise = false;                                // the weights of a token sum to one: w / (sum + 1e-20)
  double scale = 1;                                      // multiplies the weights
  // Experts stand in `groups` equal runs; a token takes them from its top_groups best ones, judged by the sum of a
  // group's two best scores (DeepSeek-V3, 2412.19437).
  std::int64_t groups = 1, top_groups = 1;
  double jitter = 0;  // what the gate sees is multiplied by uniform(1 - jitter, 1 + jitter), in training
  // Coefficients of losses. Switch (2101.03961): E * sum_e f_e P_e over the batch; the same over each sequence, then
  // the mean (DeepSeek-V3); mean of logsumexp(logits)^2 (ST-MoE, 2202.08906).
  double aux_loss = 0, sequence_aux_loss = 0, z_loss = 0;
  double expert_capacity_factor = 1;  // expert choice: an expert takes int(factor * top_k * tokens / experts) tokens
};

// Where this rank's tokens stand in the batch. By default they are all there is.
struct TokenLayout {
  Communicator ranks;          // those with different tokens; none: this rank alone
  std::int64_t total = -1;     // tokens of all of them; -1: not known, the router asks
  std::int64_t first = -1;     // the number of the first token here; -1: the tokens come in order of `ranks`
  at::Tensor index;            // [tokens] number of each token, where they do not follow each other
  std::int64_t sequences = 1;  // of the batch, and here; tokens are in order of sequences
  // Sequences that this rank has tokens of.
  std::int64_t sequences_here = 1;
  Communicator sequence_ranks;  // those with other tokens of the same sequences
  double share = 1;             // of the losses: 1 / the number of ranks that hold these same tokens
};

// Numbers of entries that ranks tell each other: one exchange, whoever asks for it first.
class DTENSOR_API SharedCounts {
 public:
  explicit SharedCounts(at::Tensor local) : local_(std::move(local)) {}
  // Of this rank alone.
  const at::Tensor& local() const { return local_; }
  // [ranks, experts], on the CPU. Collective over `ranks` the first time; begin() starts it.
  at::Tensor of_ranks(const Communicator& ranks);
  at::Tensor on_device(const Communicator& ranks);  // the same where the counts are; the host does not wait
  void begin(const Communicator& ranks);

 private:
  struct Exchange {
    Communicator ranks;
    at::Tensor counts, host;
    Work work;
  };
  Exchange& exchange(const Communicator& ranks);
  static at::Tensor rows_of(const at::Tensor& counts, const Exchange& done, const Communicator& ranks);
  at::Tensor local_;
  std::vector<Exchange> exchanges_;
};

// How experts are chosen, as an object: one for each RouterChoice, and any of the user's own.
class DTENSOR_API RoutingStrategy {
 public:
  // Which experts, with which scores.
  struct Choice {
    at::Tensor experts;  // [tokens, choices] int64, on the scores' device; RouterOptions::experts: none
    // Counts and order of these experts, where they are known already; else they are found, once for all who need them.
    std::shared_ptr<const SortedBins> order = {};
    bool complete = true;      // every place has an expert
    bool round_robin = false;  // entry i of the batch has expert i modulo experts: what EqualAllToAll relies on
    bool same_width = true;    // every rank has as many choices a token
  };
  virtual ~RoutingStrategy() = default;
  // scores [tokens, experts] of this rank's tokens, as the router's score function gives them; `bias` [experts], or
  // undefined, is added for the choice only. No gradient is recorded. May be collective over layout.ranks, but not
  // depending on the data.
  virtual Choice choose(const at::Tensor& scores, const RouterOptions& options, const TokenLayout& layout,
                        const at::Tensor& bias) const = 0;
  virtual const char* name() const = 0;
};
using RoutingStrategyPtr = std::shared_ptr<const RoutingStrategy>;

// The strategies of RouterChoice.
DTENSOR_API RoutingStrategyPtr token_choice();
DTENSOR_API RoutingStrategyPtr expert_choice();
// Experts in turn, whatever the scores: for measuring without imbalance. Keeps experts, counts and order for each
// number of tokens (and their place in the batch) that it has met.
DTENSOR_API RoutingStrategyPtr force_load_balance();
DTENSOR_API RoutingStrategyPtr make_strategy(RouterChoice choice);

// What a router decided.
struct Routing {
  // Number of experts.
  std::int64_t expert_count = 0;
  at::Tensor experts;                            // [tokens, choices] int64; expert_count: none
  at::Tensor weights;                            // [tokens, choices], differentiable
  at::Tensor scores;                             // [tokens, expert_count], differentiable
  std::shared_ptr<SharedCounts> counts;          // entries an expert, here; counted once
  at::Tensor loss;                               // this rank's share of the losses asked for; undefined: none
  bool round_robin = false;                      // chosen so; no counts need be exchanged
  bool by_experts = false;                       // each rank has its own number of choices
  std::shared_ptr<const SortedBins> order = {};  // of the entries, where the strategy knows it
  std::int64_t empty = 0;                        // entries without an expert, here; -1: not known to the host
  bool complete = false;                         // every place has an expert, on all ranks
};

// x [tokens, D], gate [experts, D] (computed in float at least). `bias` [experts]: added to the scores for the choice
// only. Collective over layout.ranks for what the options ask for, and never depending on the data.
DTENSOR_API Routing route(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& options,
                          const TokenLayout& layout = {}, const at::Tensor& bias = {});

// Which of the batch's tokens are here: tokens of all ranks and of those before this one. May be collective.
struct TokenRange {
  // Of all ranks, and of those before this one.
  std::int64_t total = 0, first = 0;
};
// Of the tokens that `routing` is about.
DTENSOR_API TokenRange token_range(const Routing& routing, const TokenLayout& layout);

// Balance without a loss (2408.15664): after each optimizer step b += rate * sign(mean load - load), where the load is
// that of all tokens since the last step. A forward pass that recomputes for a backward pass does not count.
class DTENSOR_API LoadBalancer {
 public:
  explicit LoadBalancer(std::int64_t experts, double rate, at::TensorOptions options = {});
  // Adds to the load of this step.
  void count(const Routing& routing);
  at::Tensor bias;    // [experts] float
  at::Tensor counts;  // [experts] int64: of this rank, since the last step
  double rate;
};
// At the optimizer step, for all layers in one collective over the ranks that hold different tokens.
DTENSOR_API void update_load_balancers(const std::vector<LoadBalancer*>& balancers, const Communicator& ranks);

}  // namespace dtensor
