// Draws the figures of docs/benchmarks.md anew: the transformer of examples/train under each usual layout, its loss
// beside one device's, and what a step holds on rank 0.
//
//   figures FOLDER [flags of train, as --steps 50 --hidden 32]
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "train/compare.h"
#include "train/layouts.h"
#include "train/run.h"

namespace {

int draw(const std::string& folder, int argc, char** argv) {
  std::optional<int> exit_status;
  const auto options = train::parse_args(train::Kind::dense, argc, argv, exit_status);
  if (exit_status) return *exit_status;
  if (!std::filesystem::is_directory(folder)) throw train::UsageError("no folder " + folder);
  const auto corpus = train::Corpus::read(options.data, options.seq);
  const auto runs = train::run_layouts(options, corpus, train::usual_layouts());
  train::write_figures(folder, options, train::losses(train::train_on_one_device(options, corpus)), runs);
  std::printf("figures: %s/layouts_loss.svg, %s/layouts_memory.svg\n", folder.c_str(), folder.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: figures FOLDER [flags of train]\n", stderr);
    return 2;
  }
  try {
    return draw(argv[1], argc - 1, argv + 1);
  } catch (const train::UsageError& error) {
    std::cerr << "figures: " << error.what() << "\n";
    return 2;
  }
}
