// Draws the figures of the documentation anew: the transformer of examples/train under each usual layout, its loss
// beside one device's, and what a step holds on rank 0; and what long sequences cost when they are split over ranks.
//
//   figures FOLDER [flags of train, as --steps 50 --hidden 32]
//   figures --long-sequences FOLDER [TOKENS]
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "dtensor/launch.h"
#include "long_sequence/picture.h"
#include "train/compare.h"
#include "train/layouts.h"
#include "train/output.h"
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

// An eighth, a quarter, a half and all of the tokens on 1, 2 and 4 ranks.
int draw_long_sequences(const std::string& folder, std::int64_t longest) {
  if (longest < 8) throw train::UsageError("--long-sequences needs 8 tokens at least");
  const std::vector<std::int64_t> tokens{longest / 8, longest / 4, longest / 2, longest};
  std::vector<long_sequence::Line> lines;
  for (const int ranks : {1, 2, 4}) {
    auto& line = lines.emplace_back(long_sequence::Line{ranks, {}});
    for (const auto length : tokens) line.costs.push_back(long_sequence::cost_of(ranks, length));
  }
  const auto path = std::filesystem::path(folder) / "long_sequences.svg";
  train::write_file(path.string(), long_sequence::costs_svg(tokens, lines));
  std::printf("figures: %s\n", path.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || (argc == 2 && argv[1] == std::string("--long-sequences"))) {
    std::fputs("usage: figures FOLDER [flags of train], or figures --long-sequences FOLDER [TOKENS]\n", stderr);
    return 2;
  }
  try {
    if (argv[1] == std::string("--long-sequences")) {
      return dtensor::finish_output(draw_long_sequences(argv[2], argc > 3 ? std::atoll(argv[3]) : 8192));
    }
    return dtensor::finish_output(draw(argv[1], argc - 1, argv + 1));
  } catch (const train::UsageError& error) {
    std::cerr << "figures: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "figures: " << error.what() << "\n";
    return 1;
  }
}
