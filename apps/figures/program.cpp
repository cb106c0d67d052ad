// Parses the command line, runs the programs of a figure, and draws it.
#include "program.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "chart/chart.h"
#include "dtensor/debug.h"
#include "dtensor/launch.h"
#include "dtensor/pipeline_schedule.h"
#include "long_sequence/plot.h"
#include "long_sequence/tokens.h"
#include "train/layouts/compare.h"
#include "train/layouts/layouts.h"
#include "train/output/output.h"
#include "train/program.h"
#include "train/run.h"

namespace figures {
namespace {

using train::UsageError;
namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: figures FOLDER [flags of train], figures --same-bits FOLDER [flags of train], "
    "figures --long-sequences FOLDER [TOKENS], or figures --diagrams FOLDER";

// Checked before the runs.
std::string file_in(const std::string& folder, const char* name) {
  std::error_code none;
  if (!fs::is_directory(folder, none)) throw UsageError("no folder " + folder);
  auto path = (fs::path(folder) / name).string();
  train::check_writable("FOLDER", path);
  return path;
}

// Flags of train that have no effect here, or that every layout's run would use in turn.
void refuse_flags_of_one_run(const train::Options& o) {
  const std::pair<const char*, bool> given[] = {{"--mesh", o.mesh.has_value()},
                                                {"--ranks", o.ranks.has_value()},
                                                {"--backend", !o.backend.empty()},
                                                {"--compare", o.compare},
                                                {"--memory", o.memory},
                                                {"--memory-plot", !o.memory_plot.empty()},
                                                {"--trace", !o.trace.empty()},
                                                {"--save", !o.save.empty()},
                                                {"--load", !o.load.empty()},
                                                {"--resume", !o.resume.empty()},
                                                {"--log", !o.log.empty()},
                                                {"--plot", !o.plot.empty()},
                                                {"--tensorboard", !o.tensorboard.empty()}};
  for (const auto& [flag, is_given] : given) {
    if (is_given)
      throw UsageError(std::string(flag) + " cannot be used with figures, which trains once under each usual layout");
  }
}

int draw(const std::string& folder, int argc, char** argv) {
  std::optional<int> exit_status;
  auto options = train::parse_args(train::Kind::dense, argc, argv, exit_status);
  if (exit_status) return *exit_status;
  refuse_flags_of_one_run(options);
  const auto layouts = train::usual_layouts();
  for (auto each = options; const auto& layout : layouts) {
    each.mesh = layout.shape;
    train::fit_mesh(each, static_cast<int>(layout.shape.size()));
  }
  train::check_heads(options);
  const auto corpus = train::read_corpus(options);
  const std::string loss = file_in(folder, "layouts_loss.svg"), memory = file_in(folder, "layouts_memory.svg");
  const auto runs = train::run_layouts(options, corpus, layouts);
  train::write_figures(folder, options, train::losses(train::train_on_one_device(options, corpus)), runs);
  fmt::print("figures: {}, {}\n", loss, memory);
  return 0;
}

std::vector<double> differences(const std::vector<double>& losses, const std::vector<double>& one_device) {
  std::vector<double> all;
  for (std::size_t i = 0; i < losses.size(); ++i) all.push_back(std::abs(losses[i] / one_device[i] - 1));
  return all;
}

// The loss on three meshes relative to one device, without and within a BitIdentical scope.
int draw_same_bits(const std::string& folder, int argc, char** argv) {
  std::optional<int> exit_status;
  auto options = train::parse_args(train::Kind::dense, argc, argv, exit_status);
  if (exit_status) return *exit_status;
  refuse_flags_of_one_run(options);
  const auto corpus = train::read_corpus(options);
  const std::string path = file_in(folder, "same_bits.svg");
  const std::vector<train::MeshLayout> layouts{
      {"tp 2", {.tp = 2}}, {"fsdp 2", {.shard = 2}}, {"fsdp 2 x tp 2", {.shard = 2, .tp = 2}}};
  dtensor::ChartPanel panel{.x_label = "step", .y_label = "difference of the loss from one device", .log_y = true};
  for (const bool scope : {false, true}) {
    options.bit_identical = scope;
    const auto one_device = train::losses(train::train_on_one_device(options, corpus));
    std::vector<double> steps(one_device.size());
    std::iota(steps.begin(), steps.end(), 1);
    const auto runs = train::run_layouts(options, corpus, layouts);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      panel.series.push_back({.name = layouts[i].name + (scope ? ", BitIdentical" : ""),
                              .x = steps,
                              .y = differences(runs[i].losses, one_device),
                              .width = scope ? 9 - 3 * static_cast<double>(i) : 1.4});
    }
  }
  const std::string title = std::string("Relative difference of the training loss, ") + to_string(options.dtype);
  train::write_file(path, dtensor::to_svg(dtensor::Chart{.title = title, .panels = {panel}}));
  fmt::print("figures: {}\n", path);
  return 0;
}

// An eighth, a quarter, a half and all of the tokens on 1, 2 and 4 ranks.
int draw_long_sequences(const std::string& folder, const std::string& longest_text) {
  const auto longest = long_sequence::tokens_of(longest_text);
  if (longest == 0) {
    throw UsageError(fmt::format("--long-sequences: expected TOKENS from {} to {}, got '{}'", long_sequence::kFewest,
                                 long_sequence::kMost, longest_text));
  }
  const std::string path = file_in(folder, "long_sequences.svg");
  const std::vector<std::int64_t> tokens{longest / 8, longest / 4, longest / 2, longest};
  std::vector<long_sequence::Line> lines;
  for (const int ranks : {1, 2, 4}) {
    auto& line = lines.emplace_back(long_sequence::Line{ranks, {}});
    for (const auto length : tokens) line.costs.push_back(long_sequence::cost_of(ranks, length));
  }
  train::write_file(path, long_sequence::costs_svg(tokens, lines));
  fmt::print("figures: {}\n", path);
  return 0;
}

// Diagrams of the library: the shards of a tensor, and the simulated schedule of a pipeline.
int draw_diagrams(const std::string& folder) {
  const std::string placement = file_in(folder, "placement.svg"), pipeline = file_in(folder, "pipeline.svg");
  dtensor::run_local(4, [&](const dtensor::Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    const auto drawing = dtensor::visualize_sharding_svg({6, 7}, mesh, {dtensor::Shard(0), dtensor::Shard(1)});
    if (world.rank() == 0) train::write_file(placement, drawing);
  });
  namespace pl = dtensor::pipeline;
  const auto schedule = pl::with_communication(pl::make_schedule("zbv", /*ranks=*/4, /*microbatches=*/8));
  train::write_file(pipeline, pl::schedule_svg(pl::simulate(schedule).ranks));
  fmt::print("figures: {}, {}\n", placement, pipeline);
  return 0;
}

int run(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") return std::puts(kUsage), 0;
  if (first == "--long-sequences") {
    if (argc < 3 || argc > 4) throw UsageError(kUsage);
    return draw_long_sequences(argv[2], argc > 3 ? argv[3] : "8192");
  }
  if (first == "--same-bits") {
    if (argc < 3) throw UsageError(kUsage);
    return draw_same_bits(argv[2], argc - 2, argv + 2);
  }
  if (first == "--diagrams") {
    if (argc != 3) throw UsageError(kUsage);
    return draw_diagrams(argv[2]);
  }
  if (first.empty() || first.starts_with("-")) throw UsageError(kUsage);
  return draw(first, argc - 1, argv + 1);
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    return dtensor::finish_output(run(argc, argv));
  } catch (const UsageError& error) {
    std::cerr << "figures: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "figures: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace figures
