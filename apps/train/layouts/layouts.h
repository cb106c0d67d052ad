// Trains one model under each kind of parallelism, for plots of the loss and of the memory of a step.
#pragma once

#include <string>
#include <vector>

#include "train/args.h"
#include "train/data/data.h"
#include "train/plots/memory_plot.h"

namespace train {

struct MeshLayout {
  std::string name;
  MeshShape shape;
};
// Data parallel, fully sharded, hybrid and tensor parallel on 4 ranks, and all of them on 8.
std::vector<MeshLayout> usual_layouts();

struct LayoutRun {
  std::string name;
  std::vector<double> losses;
  std::vector<MemorySample> memory;  // Of the last step, on rank 0.
};
// Trains on thread ranks, one layout after the other.
std::vector<LayoutRun> run_layouts(Options options, const Corpus& corpus, const std::vector<MeshLayout>& layouts);

// Writes FOLDER/layouts_loss.svg, with the curve of one device and the largest difference from it, and
// FOLDER/layouts_memory.svg.
void write_figures(const std::string& folder, const Options& options, const std::vector<double>& one_device,
                   const std::vector<LayoutRun>& runs);

}  // namespace train
