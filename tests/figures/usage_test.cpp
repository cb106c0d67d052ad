// Invalid arguments of figures end with one line and status 2 before training. Arguments of the model take effect.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "figures/program.h"
#include "support/captured.h"
#include "support/data.h"
#include "support/folder.h"

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class Figures : public testing::Test {
 protected:
  dtensor::test::ProgramOutput run(Words words) const {
    words.insert(words.begin(), "figures");
    return dtensor::test::run_captured(words, figures::run_program);
  }
  dtensor::test::ProgramOutput draw(const Words& more) const {
    Words words = {folder_.str(), "--hidden", "16",
                   "--layers",    "1",        "--steps",
                   "2",           "--data",   dtensor::test::data_path("oracles/transformer.json")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  void expect_rejected(const dtensor::test::ProgramOutput& ended, const std::string& message) const {
    EXPECT_EQ(ended.status, 2) << message << ": " << ended.error;
    EXPECT_TRUE(ended.error.starts_with("figures: " + message)) << ended.error;
    EXPECT_TRUE(fs::is_empty(folder_.path())) << message;
  }
  std::string curves() const {
    std::ifstream in(folder_ / "layouts_loss.svg");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const dtensor::test::Folder folder_;
};

// Flags of a single run: each layout would start from the previous layout's checkpoint, or ignore the flag.
TEST_F(Figures, RefusesFlagsOfASingleRun) {
  const auto elsewhere = folder_.str() + "_not";
  for (const Words& words : std::vector<Words>{{"--mesh", "tp=2"},
                                               {"--ranks", "2"},
                                               {"--backend", "local"},
                                               {"--compare"},
                                               {"--memory"},
                                               {"--memory-plot", elsewhere},
                                               {"--trace", elsewhere},
                                               {"--save", elsewhere},
                                               {"--load", elsewhere},
                                               {"--resume", elsewhere},
                                               {"--log", elsewhere},
                                               {"--plot", elsewhere},
                                               {"--tensorboard", elsewhere}}) {
    expect_rejected(draw(words), words[0] + " cannot be used with figures");
    EXPECT_FALSE(fs::exists(elsewhere)) << words[0];
  }
}

TEST_F(Figures, RefusesInvalidArguments) {
  expect_rejected(run({folder_.str(), "--hidden", "18"}), "--hidden: expected a multiple of the 4 heads, got 18");
  expect_rejected(draw({"--reshard-after-forward", "3"}), "--reshard-after-forward 3 does not divide");
  expect_rejected(draw({"--tokenizer", folder_.str() + "_not"}), "--tokenizer: ");
  const auto no_folder = folder_ / "none";
  expect_rejected(run({no_folder, "--steps", "1"}), "no folder " + no_folder);
  expect_rejected(run({"--long-sequences", no_folder, "8"}), "no folder " + no_folder);
  for (const char* tokens : {"7", "12abc", "", "-8", "99999999999999999999", "0x20"}) {
    expect_rejected(run({"--long-sequences", folder_.str(), tokens}),
                    "--long-sequences: expected TOKENS from 8 to 16777216, got");
  }
  expect_rejected(run({"--long-sequences", folder_.str(), "8", "9"}), "usage: ");
  expect_rejected(run({"--long-sequences"}), "usage: ");
  expect_rejected(run({"--same-bits"}), "usage: ");
  expect_rejected(run({"--same-bits", no_folder, "--steps", "1"}), "no folder " + no_folder);
  expect_rejected(run({"--same-bits", folder_.str(), "--mesh", "tp=2"}), "--mesh cannot be used with figures");
  expect_rejected(run({"--steps", "1"}), "usage: ");
  expect_rejected(run({}), "usage: ");
  const auto help = run({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out.starts_with("usage: ")) << help.out << help.error;
}

// Losses of tokenized text differ from those of its bytes.
TEST_F(Figures, UsesTheTokenizer) {
  ASSERT_EQ(draw({}).status, 0);
  const auto of_bytes = curves();
  ASSERT_EQ(draw({"--tokenizer", "shipped"}).status, 0);
  EXPECT_NE(curves(), of_bytes);
}

// By curve: whether all its points have one height.
std::vector<bool> flat_curves(const std::string& svg) {
  const std::regex curve("<polyline[^>]* points=\"([^\"]*)\""), height(",([0-9.]+)");
  std::vector<bool> flat;
  for (std::sregex_iterator c(svg.begin(), svg.end(), curve), end; c != end; ++c) {
    const std::string points = (*c)[1];
    std::set<std::string> heights;
    for (std::sregex_iterator h(points.begin(), points.end(), height); h != end; ++h) heights.insert((*h)[1]);
    flat.push_back(heights.size() == 1);
  }
  return flat;
}

// Ordinary runs differ from one device by rounding, those in the scope do not.
TEST_F(Figures, SameBitsDrawsEachMeshWithAndWithoutTheScope) {
  const Words words{"--same-bits", folder_.str(), "--hidden", "48", "--layers", "1", "--steps", "12", "--lr", "1e-2"};
  ASSERT_EQ(run(words).status, 0);
  std::ifstream in(folder_ / "same_bits.svg");
  const std::string svg{std::istreambuf_iterator<char>(in), {}};
  for (const std::string mesh : {"tp 2", "fsdp 2", "fsdp 2 x tp 2"}) {
    EXPECT_NE(svg.find(">" + mesh + "<"), std::string::npos) << mesh;
    EXPECT_NE(svg.find(">" + mesh + ", BitIdentical<"), std::string::npos) << mesh;
  }
  const auto flat = flat_curves(svg);
  ASSERT_EQ(flat.size(), 6);
  EXPECT_FALSE(flat[0] && flat[1] && flat[2]);
  EXPECT_TRUE(flat[3] && flat[4] && flat[5]);
}

}  // namespace
