// Parts of the training program: command line, data, log, plot, comparison, plan.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <cstdio>
#include <fstream>

#include "device_flag.h"
#include "support/data.h"
#include "support/folder.h"
#include "train/args.h"
#include "train/data/data.h"
#include "train/layouts/compare.h"
#include "train/layouts/flops.h"
#include "train/model/plan.h"
#include "train/output/log.h"
#include "train/output/output.h"
#include "train/output/progress.h"
#include "train/plots/plot.h"
#include "train/run.h"

namespace {

using namespace train;

Options parse(std::vector<std::string> words, Kind program = Kind::dense) {
  words.insert(words.begin(), to_string(program));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  std::optional<int> exit_status;
  return parse_args(program, static_cast<int>(argv.size()), argv.data(), exit_status);
}

std::string usage_error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Args, NcclRanksComputeOnGpus) {
  const auto device = [](std::vector<std::string> words, const char* backend) {
    return device_flag::type_of(device_flag::resolve(parse(std::move(words)).device, backend));
  };
  EXPECT_EQ(device({}, "nccl"), c10::kCUDA);
  EXPECT_EQ(device({}, "local"), c10::kCPU);
  EXPECT_EQ(device({"--device", "cuda"}, "local"), c10::kCUDA);
  EXPECT_EQ(device({"--device", "cpu"}, "nccl"), c10::kCPU);
}

// The formula of PaLM: 6 for each weight that a token uses, and the two products of attention for each row.
TEST(Flops, CountTheWeightsThatATokenUses) {
  const auto dense = gpt_config(parse({"--hidden", "64", "--layers", "3"}));
  const double block = 4.0 * 64 * 64 + 2.0 * 64 * 256, head = 64.0 * 257;
  EXPECT_DOUBLE_EQ(flops_per_token(dense, 128), 6 * (3 * block + head) + 12.0 * 3 * 64 * 128);
  EXPECT_DOUBLE_EQ(flops_per_token(dense, 128, AttentionFlops::causal), 6 * (3 * block + head) + 6.0 * 3 * 64 * 128);
  const auto experts = gpt_config(
      parse({"--hidden", "64", "--layers", "3", "--experts", "8", "--top-k", "2", "--ffn", "32"}, Kind::experts));
  const double expert = 3.0 * 64 * 32, sparse = 4.0 * 64 * 64 + 64.0 * 8 + 2 * expert;
  EXPECT_DOUBLE_EQ(flops_per_token(experts, 128), 6 * (3 * sparse + head) + 12.0 * 3 * 64 * 128);
}

TEST(Flops, AreShownAsPercentageOfThePeak) {
  auto options = parse({"--hidden", "64", "--batch", "2", "--seq", "8"});
  const std::vector<StepRecord> records = {{.tokens = 16, .seconds = 1}, {.step = 1, .tokens = 16, .seconds = 0.5}};
  const auto row_of = [&] {
    for (const auto& [key, value] : summary(options, "here", records)) {
      if (key == "arithmetic") return value;
    }
    return std::string();
  };
  EXPECT_EQ(row_of(), "");
  options.peak_tflops = 32 * flops_per_token(gpt_config(options), 8) / 1e12 * 4;  // 32 tokens a second are a quarter.
  EXPECT_NE(row_of().find(", 25.0 % of "), std::string::npos) << row_of();
  const double causal = flops_per_token(gpt_config(options), 8, AttentionFlops::causal);
  const double percent = 25 * causal / flops_per_token(gpt_config(options), 8);
  char expected[32];
  std::snprintf(expected, sizeof expected, ", %.1f %% if", percent);
  EXPECT_NE(row_of().find(expected), std::string::npos) << row_of();
}

TEST(Args, MeshNamesComeInAnyOrderAndDefaultToOne) {
  const MeshShape shape = parse_mesh("tp=3,replicate=2");
  EXPECT_EQ(shape.str(), "replicate=2, shard=1, tp=3");
  EXPECT_EQ(shape.size(), 6);
}

TEST(Args, MistakesAreReportedInOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"--mesh", "dp=2"}, "dp"},    {{"--mesh", "tp=0"}, "tp=0"},           {{"--mesh", "tp=2,tp=2"}, "tp"},
      {{"--mesh", "tp"}, "tp"},      {{"--mesh", "tp=two"}, "tp=two"},       {{"--mesh", "tp=2", "--ranks", "3"}, "3"},
      {{"--model", "huge"}, "huge"}, {{"--dtype", "int8"}, "int8"},          {{"--dropout", "1.5"}, "--dropout"},
      {{"--steps", "0"}, "--steps"}, {{"--no-such-flag"}, "--no-such-flag"},
  };
  for (const auto& [words, named] : mistakes) {
    const std::string error = usage_error_of([&] { parse(words); });
    EXPECT_NE(error.find(named), std::string::npos) << named << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(Args, MeshMustHaveAsManyRanksAsTheProgram) {
  Options options;
  EXPECT_EQ(fit_mesh(options, 3).shard, 3);
  options.mesh = parse_mesh("shard=2,tp=2");
  EXPECT_EQ(fit_mesh(options, 4).tp, 2);
  EXPECT_THROW(fit_mesh(options, 3), UsageError);
}

TEST(Data, FoldersAreReadInSortedOrder) {
  const dtensor::test::Folder folder;
  std::ofstream(folder / "b.txt") << "world";
  std::ofstream(folder / "a.txt") << "hello ";
  const Corpus corpus = Corpus::read({folder.str()}, 10);
  EXPECT_EQ(corpus.files(), 2);
  const Batch batch = corpus.batch(0, 0, {1, 10});  // One possible start only.
  EXPECT_EQ(batch.ids[0][0].item<int>(), 'h');
  EXPECT_EQ(batch.targets[0][9].item<int>(), 'd');
}

RC_GTEST_PROP(Data, FingerprintsAreEqualIffTokensAre, ()) {
  auto tokens =
      *rc::gen::container<std::vector<std::int32_t>>(*rc::gen::inRange<std::size_t>(3, 50), rc::gen::inRange(0, 4));
  const auto fingerprint = [&] { return Corpus::of(tokens, 2).fingerprint(); };
  const auto before = fingerprint();
  RC_ASSERT(fingerprint() == before);
  const auto first = *rc::gen::inRange<std::size_t>(0, tokens.size()),
             other = *rc::gen::inRange<std::size_t>(0, tokens.size());
  const bool same = tokens[first] == tokens[other];
  std::swap(tokens[first], tokens[other]);
  RC_ASSERT((fingerprint() == before) == same);
  tokens.push_back(0);
  RC_ASSERT(fingerprint() != before);
}

// Thread ranks share a corpus; each of them requests its fingerprint.
TEST(Data, FingerprintIsComputedOncePerCorpus) {
  const auto corpus = Corpus::of(std::vector<std::int32_t>(1 << 22, 7), 2);
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t all = 0;
  for (int rank = 0; rank < 1000; ++rank) all |= corpus.fingerprint();
  EXPECT_EQ(all, corpus.fingerprint());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// Each rank reads its own batches, so ranks with other texts would train on a mixture.
TEST(Data, DifferentTextsAreReportedOnEveryRank) {
  const auto corpus_of = [](int last) { return train::Corpus::of({1, 2, 3, 4, last}, 2); };
  dtensor::run_local(3, [&](const dtensor::Communicator& world) {
    EXPECT_NO_THROW(corpus_of(5).check_same(world));
    try {
      corpus_of(world.rank() == 2 ? 6 : 5).check_same(world);
      ADD_FAILURE() << "rank " << world.rank() << ": expected an error for a different text";
    } catch (const train::UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2 reads 5 tokens"), std::string::npos) << error.what();
    }
  });
}

TEST(Data, MissingOrShortTextIsAUsageError) {
  EXPECT_NE(usage_error_of([] { Corpus::read({"no/such/file"}, 4); }).find("no/such/file"), std::string::npos);
  const dtensor::test::Folder folder;
  std::ofstream(folder / "a.txt") << "abc";
  EXPECT_NE(usage_error_of([&] { Corpus::read({folder.str()}, 16); }).find("16"), std::string::npos);
}

RC_GTEST_PROP(Data, BatchesDependOnSeedAndStepOnlyAndTargetsAreNextBytes, ()) {
  static const Corpus corpus = Corpus::read({dtensor::test::data_path("")}, 64);
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 100), step = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const auto rows = *rc::gen::inRange<std::int64_t>(1, 5), length = *rc::gen::inRange<std::int64_t>(2, 64);
  const Batch a = corpus.batch(seed, step, {rows, length}), b = corpus.batch(seed, step, {rows, length});
  RC_ASSERT(at::equal(a.ids, b.ids));
  RC_ASSERT(at::equal(a.ids.narrow(1, 1, length - 1), a.targets.narrow(1, 0, length - 1)));
  RC_ASSERT(a.ids.min().item<int>() >= 0 && a.targets.max().item<int>() < 256);
}

// Pieces of text with lengths from an eighth to half of the sequence, each with its end-of-text token.
RC_GTEST_PROP(Data, DocumentsHaveTheRequestedLengths, ()) {
  static const Corpus corpus = Corpus::read({dtensor::test::data_path("")}, 64);
  const auto step = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const std::int64_t length = 64;
  const Batch batch = corpus.batch(3, step, {1, length, true});
  RC_ASSERT(at::equal(batch.ids.narrow(1, 1, length - 1), batch.targets.narrow(1, 0, length - 1)));
  std::int64_t since = 0, ends = 0;
  for (std::int64_t t = 0; t < length; ++t, ++since) {
    if (batch.ids[0][t].item<std::int64_t>() != kEndOfDocument) continue;
    RC_ASSERT(since >= (length + 1) / 8 && since <= (length + 1) / 2);
    since = -1;
    ++ends;
  }
  RC_ASSERT(ends >= 1);
}

TEST(Log, OneJsonObjectPerStep) {
  const dtensor::test::Folder folder;
  const std::string file = folder / "log.jsonl";
  StepLog log(file);
  log.add({.step = 0, .tokens = 8, .loss = 2.5, .moved = {{"tp", 64}}});
  log.add({.step = 1, .tokens = 8, .loss = 1.5});
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line.rfind("{\"step\":0,\"loss\":2.5,\"grad_norm\":", 0), 0) << line;
  EXPECT_NE(line.find("\"bytes_received\":{\"tp\":64}"), std::string::npos) << line;
  std::getline(in, line);
  EXPECT_EQ(line.rfind("{\"step\":1,", 0), 0) << line;
}

TEST(Log, UnwritableFilesAreAUsageError) {
  EXPECT_NE(usage_error_of([] { check_writable("--plot", "no/such/folder/x.svg"); }).find("--plot"), std::string::npos);
}

TEST(Plot, HasEachCurveItsNameAndTheBound) {
  const std::string svg = to_svg({.title = "a < b",
                                  .curves = {{"one device", {3, 2, 1}}, {"mesh", {3, 2, 1}}},
                                  .difference = {0, 1e-7, 1e-6},
                                  .bound = 1e-5});
  for (const char* part : {"a &lt; b", "one device", "mesh", "bound 1e-05", "</svg>"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Plot, NamesTheQuantityOfItsCurves) {
  const std::string svg = to_svg({.title = "t", .curves = {{"a", {1, 2}}, {"b", {1, 2}}}, .y_name = "height"});
  EXPECT_NE(svg.find(">height<"), std::string::npos);
  EXPECT_EQ(svg.find(">loss<"), std::string::npos);
}

// The last curve is the narrowest, so every curve is visible below the later ones.
TEST(Plot, CoincidingCurvesAreAllVisible) {
  std::vector<Curve> curves(6, {"c", {1, 2}});
  const std::string svg = to_svg({.title = "t", .curves = curves, .coincide = true});
  double before = 1e9;
  std::size_t drawn = 0;
  for (auto at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1), ++drawn) {
    const double width = std::stod(svg.substr(svg.find("stroke-width=\"", at) + 14));
    EXPECT_LE(width, before - 2);
    before = width;
  }
  EXPECT_EQ(drawn, 6U);
}

TEST(Progress, LinesFitIfTheWidthIsUnknown) {
  EXPECT_EQ(cut_to_terminal(std::string(200, 'x'), -1).size(), 79U);
  EXPECT_EQ(cut_to_terminal("short", -1), "short");
}

TEST(Plot, FlatAndBrokenCurvesAreDrawn) {
  for (const std::vector<double>& values : {std::vector<double>{1, 1, 1}, {1}, {NAN, 2, INFINITY}, {NAN}}) {
    const std::string svg = to_svg({.title = "t", .curves = {{"c", values}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

TEST(Compare, LargestDifferenceCountsAndNaNIsNotEqual) {
  EXPECT_NEAR(relative_difference({1.0, 2.2}, {1.0, 2.0})[1], 0.1, 1e-12);
  EXPECT_FALSE((Comparison{.largest = NAN, .bound = 1}.equal()));
  EXPECT_FALSE((Comparison{.largest = 0.1, .bound = 0.2, .first = 0.1, .first_bound = 1e-5}.equal()));
  EXPECT_TRUE((Comparison{.largest = 0, .bound = 0}.equal()));
}

TEST(Compare, NaNLossIsNotEqualAtAnyStep) {
  Options o;
  o.hidden = 16, o.layers = 1, o.batch = 2, o.seq = 4, o.steps = 3, o.dtype = Dtype::float64;
  const Corpus corpus = Corpus::read({dtensor::test::data_path("oracles/transformer.json")}, o.seq);
  const auto fine = train_on_one_device(o, corpus);
  EXPECT_TRUE(compare_with_one_device(o, corpus, fine).equal());
  for (std::size_t step = 0; step < fine.size(); ++step) {
    auto broken = fine;
    broken[step].loss = NAN;
    EXPECT_FALSE(compare_with_one_device(o, corpus, broken).equal()) << step;
  }
}

TEST(Plan, ParametersHaveTheExpectedPlacements) {
  const auto placed = [](const MeshShape& shape, const char* parallel) {
    std::map<std::string, std::string> placements;
    dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
      GptConfig config = tiny();
      config.tensor = config.tensor.device(at::kMeta);
      Gpt model(config);
      Options o;
      o.parallel = parallel;
      distribute(model, make_mesh(world, shape), o);
      if (world.rank() != 0) return;
      for (const auto& [name, t] : model.named_parameters()) {
        placements[name] = dtensor::to_string(dtensor::DTensor(*t).placements());
      }
    });
    return placements;
  };
  for (const char* parallel : {"fsdp", "plain"}) {
    auto found = placed({.replicate = 2, .shard = 2, .tp = 2}, parallel);
    EXPECT_EQ(found["embed.weight"], "[R, SS(0, 2)*, R, S(0)]");
    EXPECT_EQ(found["layers.0.attn.q_proj.weight"], "[R, SS(0, 2)*, R, S(0)]");
    EXPECT_EQ(found["layers.0.attn.o_proj.weight"], "[R, S(0)*, R, S(1)]");
    EXPECT_EQ(found["layers.0.mlp.up_proj.weight"], "[R, SS(0, 2)*, R, S(0)]");
    EXPECT_EQ(found["layers.0.mlp.down_proj.weight"], "[R, S(0)*, R, S(1)]");
    EXPECT_EQ(found["layers.0.attn_norm.weight"], "[R, S(0)*, R, R]");
    EXPECT_EQ(found["lm_head.weight"], "[R, SS(0, 2)*, R, S(0)]");
  }
  EXPECT_EQ(placed({.shard = 2}, "plain")["embed.weight"], "[R, S(0)*, R, S(0)]");
}

}  // namespace
