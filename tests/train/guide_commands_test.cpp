// Every command line of train and moe in docs/guide/apps is valid for its number of ranks.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "support/data.h"
#include "train/args.h"

namespace {

using Words = std::vector<std::string>;

// Each command as words (starting with the program's name) and the number of processes of its mpirun, 0 without mpirun.
std::vector<std::pair<Words, int>> commands(const std::string& page) {
  std::vector<std::pair<Words, int>> all;
  std::ifstream in(dtensor::test::source_path("docs/guide/apps/" + page));
  const std::regex command("(?:mpirun -n ([0-9]+) )?build/release/apps/((?:train|moe) [^;#`]*)");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("build/") && !line.starts_with("mpirun ")) continue;  // Part of a sentence.
    for (std::sregex_iterator it(line.begin(), line.end(), command), end; it != end; ++it) {
      std::istringstream text((*it)[2]);
      const Words words{std::istream_iterator<std::string>(text), {}};
      all.emplace_back(words, (*it)[1].matched ? std::stoi((*it)[1]) : 0);
    }
  }
  return all;
}

// Parses the command as the program does.
void check(Words words, int processes) {
  std::string line;
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data()), line += word + " ";
  const auto kind = words[0] == "moe" ? train::Kind::experts : train::Kind::dense;
  try {
    std::optional<int> ended;
    const auto options = train::parse_args(kind, static_cast<int>(argv.size()), argv.data(), ended);
    const auto threads = options.ranks ? *options.ranks : options.mesh ? options.mesh->size() : 1;
    const auto shape = train::fit_mesh(options, processes > 0 ? processes : static_cast<int>(threads));
    if (options.experts) train::fit_sparse(*options.experts, shape);
  } catch (const train::UsageError& error) {
    ADD_FAILURE() << line << ": " << error.what();
  }
}

TEST(Guide, CommandsOfTrainAndMoeAreValid) {
  int count = 0;
  for (const char* page : {"train.md", "moe.md"}) {
    for (const auto& [words, processes] : commands(page)) check(words, processes), ++count;
  }
  EXPECT_GT(count, 15);
}

}  // namespace
