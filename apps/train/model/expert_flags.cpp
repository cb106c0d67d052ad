#include "train/model/expert_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>

#include "command_line.h"

namespace train {
namespace {

void add_router_flags(CLI::App& app, ExpertFlags& e) {
  app.add_option("--balance", e.balance, "aux (a loss), bias (without a loss), none, forced (in turn)")
      ->check(CLI::IsMember({"aux", "bias", "none", "forced"}))
      ->capture_default_str();
  app.add_option("--router", e.router,
                 "tokens: tokens choose experts; experts: experts choose tokens of the full batch")
      ->check(CLI::IsMember({"tokens", "experts"}))
      ->capture_default_str();
  app.add_option("--groups", e.groups,
                 "number of equal groups of experts; a token chooses among experts of its --top-groups best groups")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--top-groups", e.top_groups, "groups from which a token chooses experts")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--z-loss", e.z_loss, "coefficient of the mean squared logsumexp of the router's logits")
      ->check(command_line::non_negative());
  app.add_option("--jitter", e.jitter, "multiply the router's inputs by uniform(1 - jitter, 1 + jitter)")
      ->check(CLI::Range(0.0, 1.0));
}

dtensor::DispatchKind dispatch_kind(const std::string& name) {
  static const std::map<std::string, dtensor::DispatchKind> kinds = {{"all-to-all", dtensor::DispatchKind::all_to_all},
                                                                     {"all-gather", dtensor::DispatchKind::all_gather},
                                                                     {"capacity", dtensor::DispatchKind::capacity},
                                                                     {"equal", dtensor::DispatchKind::equal},
                                                                     {"padded", dtensor::DispatchKind::padded}};
  return kinds.at(name);
}

dtensor::MoeOptions expert_options(const ExpertFlags& flags, std::int64_t hidden, std::int64_t tokens) {
  dtensor::MoeOptions c;
  c.ffn = flags.ffn > 0 ? flags.ffn : hidden;
  c.shared_ffn = flags.shared;
  auto& r = c.router;
  r.experts = flags.experts;
  r.top_k = flags.top_k;
  r.normalize = true;
  if (flags.balance == "aux") r.aux_loss = 0.01;
  if (flags.balance == "bias") c.balance_rate = 0.001;
  if (flags.router == "experts") r.choice = dtensor::RouterChoice::experts;
  r.groups = flags.groups, r.top_groups = flags.top_groups;
  r.z_loss = flags.z_loss, r.jitter = flags.jitter;
  r.batch_tokens = tokens;
  c.score_before_experts = flags.score_before;
  c.experts.block = flags.block;
  if (flags.backend == "loop") c.experts.backend = dtensor::ExpertBackend::loop;
  if (flags.backend == "grouped") c.experts.backend = dtensor::ExpertBackend::grouped;
  if (flags.balance == "forced") r.choice = dtensor::RouterChoice::round_robin;
  return c;
}

}  // namespace

void add_expert_flags(CLI::App& app, ExpertFlags& e) {
  app.add_option("--ep", e.ep,
                 "ranks over which the experts of a layer are split; default: the largest possible number")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--etp", e.etp, "ranks that split each expert: 1, or as many as tp")->capture_default_str();
  app.add_option("--experts", e.experts, "experts a layer")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--top-k", e.top_k, "experts a token")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--ffn", e.ffn, "width of an expert; default: the hidden size")->check(CLI::Range(1, 1 << 20));
  app.add_option("--shared", e.shared, "width of a shared expert; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--dispatcher", e.dispatcher, "all-to-all, padded, all-gather, capacity or equal (--balance forced)")
      ->check(CLI::IsMember({"all-to-all", "padded", "all-gather", "capacity", "equal"}))
      ->capture_default_str();
  app.add_option("--capacity", e.capacity, "capacity factor of --dispatcher capacity; 0: no token is dropped")
      ->check(command_line::non_negative())
      ->capture_default_str();
  add_router_flags(app, e);
  app.add_flag("--score-before-experts", e.score_before,
               "multiply tokens by scores before the experts instead of results after them");
  app.add_option("--expert-backend", e.backend,
                 "automatic (grouped for bfloat16 on a GPU, else loop), loop (one product per expert) or grouped "
                 "(one product of groups)")
      ->check(CLI::IsMember({"automatic", "loop", "grouped"}))
      ->capture_default_str();
  app.add_option("--block", e.block, "--expert-backend grouped pads the rows of each expert to a multiple of this")
      ->check(CLI::IsMember({8, 16, 128}));
  app.add_option("--expert-load", e.load,
                 "with --dry-run: load of the first expert in multiples of the mean; the others share the rest")
      ->check(CLI::Range(1.0, 4096.0))
      ->capture_default_str();
  app.add_flag("--counters", e.counters, "print how often rank 0 took fast paths");
  app.add_option("--load-plot", e.load_plot, "write the load of the experts over the steps to this SVG file");
}

void check_experts(const CLI::App& app, Options& options) {
  ExpertFlags& e = *options.experts;
  if (e.top_k > e.experts)
    throw UsageError(fmt::format("--top-k: expected at most {} (--experts), got {}", e.experts, e.top_k));
  if (e.dispatcher == "equal" && e.balance != "forced") throw UsageError("--dispatcher equal needs --balance forced");
  if (e.router == "experts" && e.dispatcher != "all-to-all") {
    throw UsageError("--router experts needs --dispatcher all-to-all, got " + e.dispatcher);
  }
  if (e.router == "experts" && app.count("--balance") > 0 && e.balance != "none") {
    throw UsageError("--router experts needs --balance none, got " + e.balance);
  }
  if (e.experts % e.groups != 0 || e.top_groups > e.groups || e.top_k > e.top_groups * (e.experts / e.groups)) {
    throw UsageError(fmt::format("--groups {} --top-groups {}: no {} choices of {} experts", e.groups, e.top_groups,
                                 e.top_k, e.experts));
  }
  if (app.count("--expert-load") > 0 && app.count("--dry-run") == 0) throw UsageError("--expert-load needs --dry-run");
  if (e.block > 0 && e.backend != "grouped") throw UsageError("--block needs --expert-backend grouped");
  if (app.count("--capacity") > 0 && e.dispatcher != "capacity") {
    throw UsageError("--capacity needs --dispatcher capacity");
  }
  if (e.backend == "grouped" && options.dtype == Dtype::float64) {
    throw UsageError("--expert-backend grouped does not support --dtype float64");
  }
  if (e.router == "experts") e.balance = "none";
}

void set_experts(GptConfig& config, const ExpertFlags& flags, std::int64_t tokens) {
  config.experts = expert_options(flags, config.hidden, tokens);
  config.dispatch = dispatch_kind(flags.dispatcher);
  config.capacity.factor = flags.capacity;
}

}  // namespace train
