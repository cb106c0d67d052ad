// The command line: that of examples/train, and what is said about experts.
#include "args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "train/model.h"
#include "train/run.h"

namespace moe_example {

using dtensor::DispatchKind;
using train::UsageError;

namespace {

const std::map<std::string, DispatchKind>& dispatchers() {
  static const std::map<std::string, DispatchKind> all = {{"all-to-all", DispatchKind::all_to_all},
                                                          {"all-gather", DispatchKind::all_gather},
                                                          {"capacity", DispatchKind::capacity},
                                                          {"equal", DispatchKind::equal}};
  return all;
}

void add_flags(CLI::App& app, Options& o) {
  app.add_option("--ep", o.ep, "ranks that share the experts of a layer; default: the most that fit");
  app.add_option("--etp", o.etp, "ranks that split each expert: 1, or as many as tp")->capture_default_str();
  app.add_option("--layers", o.layers, "blocks; default: the model's");
  app.add_option("--experts", o.experts, "experts a layer")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--top-k", o.top_k, "experts a token")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--ffn", o.ffn, "width of an expert; default: the hidden size");
  app.add_option("--shared", o.shared, "width of a shared expert; 0: none")->capture_default_str();
  app.add_option("--dispatcher", o.dispatcher, "all-to-all, all-gather, capacity or equal (--balance forced)")
      ->check(CLI::IsMember({"all-to-all", "all-gather", "capacity", "equal"}))
      ->capture_default_str();
  app.add_option("--capacity", o.capacity, "capacity factor of --dispatcher capacity")->capture_default_str();
  app.add_option("--balance", o.balance, "aux (a loss), bias (without a loss), none, forced (in turn)")
      ->check(CLI::IsMember({"aux", "bias", "none", "forced"}))
      ->capture_default_str();
  app.add_option("--load-plot", o.load_plot, "write the load of the experts over the steps to this SVG file");
}

}  // namespace

Options parse_args(int argc, char** argv, std::optional<int>& exit_status) {
  Options o;
  o.job = train::parse_args(argc, argv, exit_status, [&](CLI::App& app) {
    app.name("moe");
    app.description("Trains a mixture-of-experts language model, written for one device, on any mesh of ranks.");
    add_flags(app, o);
  });
  if (o.top_k > o.experts) throw UsageError(fmt::format("--top-k {} of {} experts", o.top_k, o.experts));
  if (o.job.bf16) throw UsageError("--mixed-precision: not here; --dtype bfloat16 trains in it throughout");
  if (o.dispatcher == "equal" && o.balance != "forced") throw UsageError("--dispatcher equal needs --balance forced");
  return o;
}

SparseShape fit_sparse(const Options& o, const train::MeshShape& dense) {
  if (o.etp != 1 && o.etp != dense.tp) {
    throw UsageError(fmt::format("--etp {}: 1, or as many as tp ({})", o.etp, dense.tp));
  }
  const auto rest = dense.size() / o.etp;
  auto ep = o.ep;
  for (auto fits = rest; ep == 0; --fits) ep = rest % fits == 0 && o.experts % fits == 0 ? fits : 0;
  if (rest % ep != 0 || o.experts % ep != 0) {
    throw UsageError(fmt::format("--ep {} divides {} ranks and {} experts", ep, rest, o.experts));
  }
  return {rest / ep, ep, o.etp};
}

ModelConfig model_config(const Options& o) {
  const auto base = o.job.model == "tiny" ? train::tiny() : train::gpt_153m();
  ModelConfig c{base.vocabulary, o.job.hidden > 0 ? o.job.hidden : base.hidden, base.heads, base.layers, {}};
  if (o.layers > 0) c.layers = o.layers;
  c.moe.hidden = c.hidden;
  c.moe.ffn = o.ffn > 0 ? o.ffn : c.hidden;
  c.moe.shared_ffn = o.shared;
  c.moe.tensor = train::scalar_type(o.job.dtype);
  auto& r = c.moe.router;
  r.experts = o.experts;
  r.top_k = o.top_k;
  r.normalise = true;
  if (o.balance == "aux") r.aux_loss = 0.01;
  if (o.balance == "bias") c.moe.balance_rate = 0.001;
  if (o.balance == "forced") r.choice = dtensor::RouterChoice::round_robin;
  return c;
}

DispatchKind dispatch_kind(const Options& o) { return dispatchers().at(o.dispatcher); }

}  // namespace moe_example
