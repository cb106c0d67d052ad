// What a person sees when it is done.
#include "report.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/compare.h"
#include "train/plot.h"
#include "train/progress.h"

namespace moe_example {
namespace {

std::vector<train::StepRecord> steps_of(const std::vector<StepRecord>& records) {
  std::vector<train::StepRecord> steps;
  for (const auto& r : records) steps.push_back(r.step);
  return steps;
}

std::string load_text(const StepRecord& record) {
  std::string text;
  for (const double ratio : record.imbalance) text += fmt::format("{}{:.2f}", text.empty() ? "" : ", ", ratio);
  return text;
}

double million_parameters(const ModelConfig& c) {
  const auto& m = c.moe;
  const auto experts = 3 * c.hidden * (m.router.experts * m.ffn + m.shared_ffn) + m.router.experts * c.hidden;
  const auto block = 4 * c.hidden * c.hidden + 4 * c.hidden + experts;
  return static_cast<double>(2 * c.vocabulary * c.hidden + 2 * c.hidden + c.layers * block) * 1e-6;
}

void print_table(const Options& o, const std::string& where, const std::vector<StepRecord>& records) {
  auto table = train::summary(o.job, where, steps_of(records));
  for (auto& [name, text] : table) {
    if (name != "model") continue;
    const auto config = model_config(o);
    text = fmt::format("{} with experts, {} layers, {:.2f} M parameters, {}", o.job.model, config.layers,
                       million_parameters(config), to_string(o.job.dtype));
  }
  std::int64_t dropped = 0;
  for (const auto& r : records) dropped += r.dropped;
  table.emplace_back("experts",
                     fmt::format("{}, top {}, {} with balance {}", o.experts, o.top_k, o.dispatcher, o.balance));
  table.emplace_back("load max/mean by layer",
                     load_text(records.front()) + " at first, " + load_text(records.back()) + " at last");
  const auto entries = static_cast<double>(records.front().step.tokens * o.top_k) *
                       static_cast<double>(records.size() * records.front().imbalance.size());
  table.emplace_back("dropped",
                     fmt::format("{} token choices ({:.2f} %)", dropped, 100 * static_cast<double>(dropped) / entries));
  train::print(table);
}

void write_load(const Options& o, const std::vector<StepRecord>& records) {
  if (o.load_plot.empty()) return;
  train::Picture picture{.title = fmt::format("load of the busiest of {} experts over the mean, {} with balance {}",
                                              o.experts, o.dispatcher, o.balance)};
  for (std::size_t layer = 0; layer < records.front().imbalance.size(); ++layer) {
    train::Curve curve{fmt::format("layer {}", layer), {}};
    for (const auto& r : records) curve.values.push_back(r.imbalance[layer]);
    picture.curves.push_back(std::move(curve));
  }
  train::write_svg(o.load_plot, picture);
  fmt::print("load picture: {}\n", o.load_plot);
}

struct Comparison {
  std::vector<double> reference, difference;
  double largest = 0, bound = 0;
};

double largest_of(const std::vector<double>& values) {
  double result = 0;
  for (const double v : values) result = v <= result ? result : v;  // NaN stays
  return result;
}

// As examples/train judges: rounding, or three times what another split of the batch changes on one device.
Comparison compare(const Options& o, const train::Corpus& corpus, const std::vector<StepRecord>& records) {
  Comparison c;
  const auto from_there = [&](std::vector<double> all) {  // a run that goes on from a checkpoint
    all.erase(all.begin(), all.begin() + records.front().step.step);
    return all;
  };
  c.reference = from_there(train::losses(steps_of(train_on_one_device(o, corpus))));
  c.difference = train::relative_difference(train::losses(steps_of(records)), c.reference);
  c.largest = largest_of(c.difference);
  c.bound = o.job.dtype == train::Dtype::float64 ? 1e-9 : o.job.dtype == train::Dtype::float32 ? 1e-5 : 1e-2;
  // Losses over the batch are not sums over its parts.
  const bool splits = o.balance != "aux" && o.dispatcher != "capacity" && o.job.batch > 1;
  if (c.largest > c.bound && o.job.dtype != train::Dtype::float64 && splits) {
    const auto split = from_there(train::losses(steps_of(train_on_one_device(o, corpus, 2))));
    c.bound = std::max(c.bound, 3 * largest_of(train::relative_difference(split, c.reference)));
  }
  return c;
}

}  // namespace

int report(const Options& o, const train::Corpus& corpus, const std::string& where,
           const std::vector<StepRecord>& records) {
  print_table(o, where, records);
  write_load(o, records);
  train::Picture picture{.title = fmt::format("{} experts: {} steps of AdamW", o.experts, o.job.steps)};
  int status = 0;
  if (o.job.compare) {
    const auto c = compare(o, corpus, records);
    status = c.largest <= c.bound ? 0 : 1;
    fmt::print("largest relative difference of the loss from one device: {:.2e} (bound {:.2e}): {}\n", c.largest,
               c.bound, status == 0 ? "the curves coincide" : "THE CURVES DIFFER");
    picture.curves.push_back({"one device", c.reference});
    picture.difference = c.difference;
    picture.bound = c.bound;
  }
  if (o.job.plot.empty()) return status;
  picture.curves.push_back({where, train::losses(steps_of(records))});
  train::write_svg(o.job.plot, picture);
  fmt::print("picture: {}\n", o.job.plot);
  return status;
}

}  // namespace moe_example
