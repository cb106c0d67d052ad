// Load of the experts over a run.
#include "train/plots/load.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "train/plots/plot.h"

namespace train {

LoadCount::LoadCount(Gpt& model)
    : layers_(dtensor::moe_layers(model)),
      table_(at::zeros({static_cast<std::int64_t>(layers_.size()), layers_.front()->options().router.experts + 1},
                       at::kLong)) {}

void LoadCount::add(dtensor::nn::Module& part) {
  for (const auto* layer : dtensor::moe_layers(part)) {
    const auto at = std::find(layers_.begin(), layers_.end(), layer) - layers_.begin();
    const at::Tensor row = table_[at];
    row.narrow(0, 0, row.size(0) - 1).add_(layer->stats().load.cpu());
    row[-1].add_(layer->stats().dropped);
  }
}

void LoadCount::finish(const dtensor::Communicator& world, std::int64_t repeated, StepRecord& record) {
  if (world && world.size() > 1) world.all_reduce(table_, dtensor::ReduceOp::sum).wait();
  const auto table = table_.to(at::kDouble) / static_cast<double>(repeated);
  const auto load = table.narrow(1, 0, table.size(1) - 1);
  const auto ratio = load.amax({1}) / load.mean(1).clamp_min(1e-9);
  record.imbalance.assign(ratio.const_data_ptr<double>(), ratio.const_data_ptr<double>() + ratio.numel());
  record.dropped = table.select(1, table.size(1) - 1).sum().item<std::int64_t>();
  table_.zero_();
}

namespace {

std::string load_text(const StepRecord& record) {
  std::string text;
  for (const double ratio : record.imbalance) text += fmt::format("{}{:.2f}", text.empty() ? "" : ", ", ratio);
  return text;
}

}  // namespace

Table load_table(const Options& options, const std::vector<StepRecord>& records) {
  const auto& e = *options.experts;
  std::int64_t dropped = 0;
  for (const auto& r : records) dropped += r.dropped;
  const auto entries = static_cast<double>(records.front().tokens * e.top_k) *
                       static_cast<double>(records.size() * records.front().imbalance.size());
  return {
      {"experts", fmt::format("{}, top {}, {} with balance {}", e.experts, e.top_k, e.dispatcher, e.balance)},
      {"load max/mean by layer", load_text(records.front()) + " at first, " + load_text(records.back()) + " at last"},
      {"dropped", fmt::format("{} token choices ({:.2f} %)", dropped, 100 * static_cast<double>(dropped) / entries)},
  };
}

Table counters_table(const dtensor::MoeCounters& c) {
  return {
      {"layer passes", fmt::format("{}; entries counted {}, sorted {} times", c.passes, c.histograms, c.sorts)},
      {"kept", fmt::format("choices {}, plans {} times", c.cached_routings, c.cached_plans)},
      {"equal exchanges", fmt::format("{}", c.equal_exchanges)},
      {"grouped products", fmt::format("{} passes, {} rows", c.aligned_passes, c.aligned_rows)},
      {"without gradients",
       fmt::format("packed weights {}, added in place {} times", c.packed_weights, c.in_place_combines)},
  };
}

void write_load(const Options& options, const std::vector<StepRecord>& records) {
  const auto& e = *options.experts;
  if (e.load_plot.empty()) return;
  Plot plot{.title = fmt::format("load of the busiest of {} experts over the mean, {} with balance {}", e.experts,
                                 e.dispatcher, e.balance),
            .y_name = "tokens of the busiest expert / mean",
            .first_step = records.front().step};
  for (std::size_t layer = 0; layer < records.front().imbalance.size(); ++layer) {
    Curve curve{fmt::format("layer {}", layer), {}};
    for (const auto& r : records) curve.values.push_back(r.imbalance[layer]);
    plot.curves.push_back(std::move(curve));
  }
  write_svg(e.load_plot, plot);
  fmt::print("load plot: {}\n", e.load_plot);
}

}  // namespace train
