// The programs train and moe: parse the command line, start the ranks, train, report.
#include "program.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>

#include "device_flag.h"
#include "dtensor/launch.h"
#include "run.h"
#include "signals.h"
#include "train/bits/hashes.h"
#include "train/layouts/compare.h"
#include "train/layouts/dry_run.h"
#include "train/layouts/search.h"
#include "train/model/stages.h"
#include "train/output/output.h"
#include "train/output/run_output.h"
#include "train/plots/load.h"
#include "train/plots/plot.h"
#include "train/plots/trace.h"

namespace train {

void check_heads(const Options& options) {
  const GptConfig config = gpt_config(options);
  if (config.hidden % config.heads != 0) {
    throw UsageError(fmt::format("--hidden: expected a multiple of the {} heads, got {}", config.heads, config.hidden));
  }
  if (config.kv_heads > 0 && config.heads % config.kv_heads != 0) {
    throw UsageError(
        fmt::format("--kv-heads: expected a divisor of the {} heads, got {}", config.heads, config.kv_heads));
  }
  if (options.predict_tokens > options.seq) {
    throw UsageError(
        fmt::format("--predict-tokens: expected at most {} (--seq), got {}", options.seq, options.predict_tokens));
  }
  if (config.rope && config.hidden / config.heads % 2 != 0) {
    throw UsageError(fmt::format("--rope needs heads of an even size, got {}", config.hidden / config.heads));
  }
}

Corpus read_corpus(Options& options) {
  if (options.tokenizer.empty()) return Corpus::read(options.data, options.seq);
  const auto tokenizer = read_tokenizer(options.tokenizer);
  const auto space = gpt_config(options).vocabulary;
  if (options.model != "tiny" && tokenizer.size() > space) {
    throw UsageError(fmt::format("--tokenizer: expected at most {} tokens (the model's vocabulary), got {}", space,
                                 tokenizer.size()));
  }
  options.vocabulary = tokenizer.size();
  if (options.documents) {
    const auto end = tokenizer.encode(end_of_text(tokenizer));
    if (end.empty()) throw UsageError("--documents needs a tokenizer with an end-of-text token, such as <|endoftext|>");
    options.end_of_document = end.front();
  }
  return Corpus::read(options.data, options.seq, &tokenizer);
}

namespace {

// What rank 0 reports after the ranks have ended.
struct Outcome {
  std::string where, usage_error, device;
  std::vector<StepRecord> records;
  MemoryUse memory;
  dtensor::MoeCounters counters;
  bool reports = false;  // This process has rank 0.
};

std::vector<StepRecord> train_and_show(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                       MemoryUse& memory) {
  const bool shows = world.rank() == 0;
  RunOutput output(options, shows);
  memory.sampled = !options.memory_plot.empty();
  auto records = train_on_mesh(
      world, options, corpus, [&](const StepRecord& record) { output.add(record); },
      options.memory || memory.sampled ? &memory : nullptr);
  output.close();
  if (options.memory && shows) memory.predicted = predict_memory(options, corpus, world.size());
  return records;
}

// Every rank gets the same result, so no rank waits for one that has ended.
std::string find_usage_error(const dtensor::Communicator& world, const Options& options) {
  if (!options.backend.empty() && options.backend != world.backend_name()) {
    return fmt::format("--backend {}: the launcher selected the backend {}{}", options.backend, world.backend_name(),
                       options.backend == "mpi" ? "; use mpirun -n RANKS" : "");
  }
  if (auto error = device_flag::find_error(options.device, world.backend_name()); !error.empty()) return error;
  try {
    const auto shape = fit_mesh(options, world.size());
    check_heads(options);
    if (options.experts) fit_sparse(*options.experts, shape);
    if (options.check_ranks > 0 && shape.size() == 1) throw UsageError("--check-ranks needs at least two ranks");
    if (shape.pp > 1) schedule_of(options, static_cast<int>(shape.pp));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::vector<StepRecord> train_and_trace(const dtensor::Communicator& world, const Options& options,
                                        const Corpus& corpus, MemoryUse& memory) {
  if (options.trace.empty()) return train_and_show(world, options, corpus, memory);
  Trace trace(world);
  std::vector<StepRecord> records = train_and_show(world, options, corpus, memory);
  for (const StepRecord& record : records) trace.add(record);
  trace.write(options.trace);
  return records;
}

std::string shape_text(const Options& options, int ranks) {
  const auto dense = fit_mesh(options, ranks);
  if (!options.experts) return dense.str();
  const auto sparse = fit_sparse(*options.experts, dense);
  return fmt::format("{}; edp={}, ep={}, etp={}", dense.str(), sparse.edp, sparse.ep, sparse.etp);
}

void run_rank(const dtensor::Communicator& world, const Options& asked, const Corpus& corpus, Outcome& outcome) {
  const std::string backend = world.backend_name();
  Options options = asked;
  options.device = device_flag::resolve(asked.device, backend);
  const bool only_rank_here = backend != "local";
  std::string usage_error = find_usage_error(world, options);
  std::vector<StepRecord> records;
  MemoryUse memory;
  dtensor::MoeCounters counters;
  if (usage_error.empty()) {
    std::optional<dtensor::MoeCountersScope> counting;
    if (options.experts && options.experts->counters) counting.emplace(counters);
    try {
      records = train_and_trace(world, options, corpus, memory);
    } catch (const UsageError& error) {  // Of a checkpoint, of texts of other ranks, or of the model's layers.
      usage_error = error.what();
    }
  }
  if (only_rank_here) memory.ranks_here = 1;
  if (world.rank() != 0 && !only_rank_here) return;  // Thread ranks share `outcome`.
  outcome.usage_error = usage_error;
  outcome.device = options.device;
  outcome.records = std::move(records);
  outcome.memory = memory;
  outcome.counters = counters;
  outcome.reports = world.rank() == 0;
  if (!usage_error.empty()) return;
  outcome.where = fmt::format("{} ({} {})", shape_text(options, world.size()), world.size(),
                              only_rank_here ? backend + " ranks" : "thread ranks");
}

void write_plot(const Options& options, const Outcome& outcome, const Comparison* comparison) {
  if (options.plot.empty()) return;
  Plot plot{.title = fmt::format("{}: {} steps of {}, {}", options.model, outcome.records.size(), options.optimizer,
                                 to_string(options.dtype)),
            .first_step = outcome.records.front().step};
  if (comparison != nullptr) {
    plot.curves.push_back({"one device", comparison->reference});
    plot.difference = comparison->difference;
    plot.bound = comparison->bound;
    plot.coincide = true;
  }
  plot.curves.push_back({outcome.where, losses(outcome.records)});
  write_svg(options.plot, plot);
  fmt::print("plot: {}\n", options.plot);
}

int report_replay(const std::vector<StepRecord>& records) {
  std::int64_t compared = 0;
  for (const StepRecord& r : records) {
    compared += r.compared;
    if (r.difference.empty()) continue;
    fmt::print("step {} differs from the recorded one in {} of {} results, first {}\n", r.step + 1, r.different,
               r.compared, r.difference);
    return 1;
  }
  fmt::print("steps {} to {} have the recorded bits: {} results are equal\n", records.front().step + 1,
             records.back().step + 1, compared);
  return 0;
}

int report(const Options& options, const Corpus& corpus, const Outcome& outcome) {
  auto table = summary(options, outcome.where, outcome.records);
  if (options.experts) {
    for (auto& row : load_table(options, outcome.records)) table.push_back(std::move(row));
    if (options.experts->counters) {
      for (auto& row : counters_table(outcome.counters)) table.push_back(std::move(row));
    }
  }
  print(table);
  if (options.experts) write_load(options, outcome.records);
  const auto& hash = outcome.records.back().content_hash;
  if (options.replay > 0) return report_replay(outcome.records);
  if (!hash.empty()) fmt::print("SHA-256 of parameters and optimizer states: {}\n", hash);
  if (options.memory) print(memory_table(outcome.memory));
  if (!options.memory_plot.empty()) {
    write_file(options.memory_plot, memory_svg({{"memory of rank 0, " + outcome.where, outcome.memory.samples}}));
    fmt::print("memory plot: {}\n", options.memory_plot);
  }
  if (!options.compare) {
    write_plot(options, outcome, nullptr);
    return 0;
  }
  std::fputs("training on one device to compare\n", stderr);
  Progress progress(options.steps);
  const auto show = [&](const StepRecord& record) { progress.show(record); };
  const Comparison comparison = compare_with_one_device(options, corpus, outcome.records, show);
  fmt::print(
      "largest relative difference of the loss from one device: {:.2e} (bound {:.2e}, {} steps; {:.2e} at step {}, "
      "bound {:.2e}): {}\n",
      comparison.largest, comparison.bound, comparison.difference.size(), comparison.first, comparison.first_step,
      comparison.first_bound, comparison.equal() ? "the curves coincide" : "THE CURVES DIFFER");
  write_plot(options, outcome, &comparison);
  return comparison.equal() ? 0 : 1;
}

// A replay compares each of its steps.
void check_recorded(const Options& options) {
  if (read_hashes(options.hashes).contains(options.replay)) return;
  throw UsageError(fmt::format("--replay: {} has no step {}", options.hashes, options.replay));
}

void check_files(const Options& options) {
  check_run_files(options);
  if (options.replay > 0) check_recorded(options);
  if (options.replay == 0) check_writable("--hashes", options.hashes);
  check_writable("--memory-plot", options.memory_plot);
  check_writable("--trace", options.trace);
  check_writable("--dry-run-json", options.dry_run_json);
  check_writable("--dry-run-trace", options.dry_run_trace);
  check_writable("--dry-run-plot", options.dry_run_plot);
  check_writable("--plan-out", options.plan_out);
  check_writable("--schedule-plot", options.schedule_plot);
  if (options.experts) check_writable("--load-plot", options.experts->load_plot);
}

int run(Kind program, int argc, char** argv) {
  std::optional<int> exit_status;
  Options options = parse_args(program, argc, argv, exit_status);
  if (exit_status) return dtensor::finish_output(*exit_status);
  check_files(options);
  const Corpus corpus = read_corpus(options);
  if (options.dry_run) return dtensor::finish_output(report_dry_run(options, corpus));
  if (!options.plan_search.empty()) return dtensor::finish_output(report_search(options, corpus));
  Outcome outcome;
  std::optional<TerminationSignals> signals;  // Without a folder to save to, signals end the program as usual.
  if (!options.save.empty()) signals.emplace();
  const int status =
      dtensor::launch(argc, argv, [&](dtensor::Communicator world) { run_rank(world, options, corpus, outcome); });
  signals.reset();  // No longer checked: the comparison may take as long as the run.
  if (!outcome.usage_error.empty()) return report_usage_error(to_string(program), outcome.usage_error);
  if (status != 0) return status;
  if (!outcome.records.empty() && outcome.records.back().stop_signal != 0) return kExitRequeue;
  options.device = outcome.device;
  return outcome.reports ? dtensor::finish_output(report(options, corpus, outcome)) : 0;
}

}  // namespace

int run_program(Kind program, int argc, char** argv) {
  dtensor::report_interrupt(to_string(program));
  try {
    return run(program, argc, argv);
  } catch (const UsageError& error) {
    return report_usage_error(to_string(program), error.what());
  } catch (const std::exception& error) {
    std::cerr << to_string(program) << ": " << error.what() << "\n";
    return 1;
  }
}

}  // namespace train
