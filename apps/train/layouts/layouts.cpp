// Runs and plots of the usual layouts.
#include "train/layouts/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "dtensor/launch.h"
#include "train/layouts/compare.h"
#include "train/layouts/larger.h"
#include "train/output/output.h"
#include "train/plots/plot.h"
#include "train/run.h"

namespace train {

std::vector<MeshLayout> usual_layouts() {
  return {{"DP", {.replicate = 4}},
          {"FSDP", {.shard = 4}},
          {"HSDP", {.replicate = 2, .shard = 2}},
          {"TP", {.tp = 4}},
          {"2x2x2", {.replicate = 2, .shard = 2, .tp = 2}}};
}

std::vector<LayoutRun> run_layouts(Options options, const Corpus& corpus, const std::vector<MeshLayout>& layouts) {
  std::vector<LayoutRun> runs;
  for (const auto& [name, shape] : layouts) {
    options.mesh = shape;
    LayoutRun& run = runs.emplace_back(LayoutRun{fmt::format("{} ({})", name, shape.str()), {}, {}});
    dtensor::run_local(static_cast<int>(shape.size()), [&](const dtensor::Communicator& world) {
      MemoryUse memory;
      memory.sampled = true;
      const auto mine = losses(train_on_mesh(world, options, corpus, {}, &memory));
      if (world.rank() == 0) run.losses = mine, run.memory = memory.samples;
    });
  }
  return runs;
}

void write_figures(const std::string& folder, const Options& options, const std::vector<double>& one_device,
                   const std::vector<LayoutRun>& runs) {
  Plot loss{.title = fmt::format("loss of {} under each layout, {}", options.model, to_string(options.dtype)),
            .curves = {{"one device", one_device}},
            .difference = std::vector<double>(one_device.size()),
            .bound = options.dtype == Dtype::float64 ? 1e-9 : 1e-5,
            .coincide = true};
  std::vector<MemoryPanel> panels;
  for (const auto& run : runs) {
    loss.curves.push_back({run.name, run.losses});
    panels.push_back({run.name, run.memory});
    const auto apart = relative_difference(run.losses, one_device);
    for (std::size_t i = 0; i < apart.size(); ++i) loss.difference[i] = max_propagate_nan(loss.difference[i], apart[i]);
  }
  const std::filesystem::path path(folder);
  write_svg((path / "layouts_loss.svg").string(), loss);
  write_file((path / "layouts_memory.svg").string(), memory_svg(panels));
}

}  // namespace train
