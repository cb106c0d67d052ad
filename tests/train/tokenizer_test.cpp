// The tokenizer gives what the Python package `tokenizers` gives (recorded by tools/tokenizer/make.py), and models
// train on its tokens, whose ids fill a vocabulary that is split over ranks.
#include "train/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "dtensor/launch.h"
#include "support/data.h"
#include "train/compare.h"
#include "train/run.h"
#include "train/words.h"

namespace {

using train::Tokenizer;
namespace fs = std::filesystem;

const Tokenizer& shipped() {
  static const auto tokenizer = Tokenizer::shipped();
  return tokenizer;
}

TEST(Tokenizer, GivesWhatThePythonPackageGives) {
  const auto data = nlohmann::json::parse(std::ifstream(dtensor::test::data_path("tokenizer.json")));
  EXPECT_GT(data["cases"].size(), 80U);
  for (const auto& c : data["cases"]) {
    const auto text = c["text"].get<std::string>();
    const auto ids = shipped().encode(text);
    EXPECT_EQ(ids, c["ids"].get<std::vector<std::int32_t>>()) << text;
    EXPECT_EQ(shipped().decode(ids), text);
  }
  EXPECT_EQ(shipped().size(), 1024);
}

RC_GTEST_PROP(Tokenizer, AnyBytesComeBack, (const std::string& bytes)) {
  RC_ASSERT(shipped().decode(shipped().encode(bytes)) == bytes);
  std::string joined;
  for (const auto word : train::words_of(bytes)) {
    RC_ASSERT(!word.empty());
    joined += word;
  }
  RC_ASSERT(joined == bytes);
}

fs::path folder() {
  const auto path = fs::temp_directory_path() / ("dtensor_tokenizer_" + std::to_string(::getpid()));
  fs::create_directories(path);
  return path;
}

std::string write(const char* name, const std::string& text) {
  std::ofstream(folder() / name) << text;
  return (folder() / name).string();
}

// Without a vocabulary ids are GPT-2's: 256 bytes, '!' first, then one for each merge, then the end of a text.
TEST(Tokenizer, ReadsMergesAlone) {
  const auto path = write("merges.txt", "#version: 0.2\nl o\nlo w\n\xC4\xA0 low\n");  // U+0120 stands for a space
  const auto tokenizer = Tokenizer::read(path);
  EXPECT_EQ(tokenizer.size(), 256 + 3 + 1);
  EXPECT_EQ(tokenizer.encode("low low!<|endoftext|>"), (std::vector<std::int32_t>{257, 258, 0, 259}));
  EXPECT_EQ(Tokenizer::read(folder().string()).size(), 260);
  write("vocab.json", R"({"l": 300, "lo": 5})");
  EXPECT_THROW(Tokenizer::read(path), train::UsageError);  // bytes without an id
  fs::remove_all(folder());
}

std::string refusal(const std::string& text) {
  try {
    Tokenizer::read(write("tokenizer.json", text));
  } catch (const train::UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(Tokenizer, WhatItDoesNotServeIsAnError) {
  const auto good = nlohmann::json::parse(std::ifstream(Tokenizer::shipped_path()));
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    auto changed = good;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    return refusal(changed.dump());
  };
  EXPECT_EQ(refusal(good.dump()), "none");
  EXPECT_NE(refusal("{").find("is no tokenizer.json"), std::string::npos);
  EXPECT_NE(with("/model/type", "Unigram").find("not BPE"), std::string::npos);
  EXPECT_NE(with("/model/byte_fallback", true).find("byte_fallback is not served"), std::string::npos);
  EXPECT_NE(with("/pre_tokenizer/type", "Whitespace").find("must be ByteLevel"), std::string::npos);
  EXPECT_NE(with("/pre_tokenizer/add_prefix_space", true).find("must be ByteLevel"), std::string::npos);
  EXPECT_NE(with("/normalizer", {{"type", "NFC"}}).find("a normalizer is not served"), std::string::npos);
  EXPECT_NE(with("/model/merges", {"ab"}).find("is no pair"), std::string::npos);
  EXPECT_NE(with("/model/merges", {"q qqq"}).find("no id for the bytes"), std::string::npos);
  fs::remove_all(folder());
}

train::Options options() {
  train::Options o{.dtype = train::Dtype::float64, .warmup = 2};
  o.steps = 5, o.batch = 4, o.seq = 16, o.hidden = 8, o.layers = 1;
  return o;
}

void expect_one_device(train::Options o, const train::Corpus& corpus, const std::vector<train::MeshShape>& meshes) {
  const auto reference = train::losses(train::train_on_one_device(o, corpus));
  for (const auto& mesh : meshes) {
    for (const bool loss_parallel : {false, true}) {
      o.mesh = mesh, o.loss_parallel = loss_parallel;
      dtensor::run_local(static_cast<int>(mesh.size()), [&](dtensor::Communicator world) {
        const auto mine = train::losses(train::train_on_mesh(world, o, corpus, {}));
        for (const double d : train::relative_difference(mine, reference)) EXPECT_LE(d, 1e-9) << mesh.str();
      });
    }
  }
}

TEST(Tokenizer, ModelsTrainOnItsTokens) {
  auto o = options();
  o.vocabulary = shipped().size();
  const auto corpus = train::Corpus::read({dtensor::test::data_path("optim.json")}, o.seq, &shipped());
  EXPECT_LT(corpus.tokens(), corpus.bytes());
  expect_one_device(o, corpus, {{1, 1, 2}, {1, 2, 1}});
}

// 50257 is odd: two ranks of tp hold 25129 and 25128 classes. Ids and targets are from all over the vocabulary, so that
// both look up and both are aimed at.
TEST(Tokenizer, AVocabularyOf50257IsUsedOnBothRanks) {
  auto o = options();
  o.vocabulary = 50257;
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 60000; ++i) tokens.push_back(static_cast<std::int32_t>(i * 15013 % 50257));
  const auto corpus = train::Corpus::of(tokens, o.seq);
  for (std::int64_t step = 0; step < o.steps; ++step) {
    const auto batch = corpus.batch(o.seed, step, {o.batch, o.seq});
    for (const auto& ids : {batch.ids, batch.targets}) {
      const auto second = (ids >= 25129).sum().item<std::int64_t>();
      EXPECT_TRUE(second > ids.numel() / 4 && second < ids.numel() * 3 / 4) << second;
    }
  }
  EXPECT_EQ(std::set<std::int32_t>(tokens.begin(), tokens.end()).size(), 50257U);
  expect_one_device(o, corpus, {{1, 1, 2}, {1, 2, 1}, {2, 1, 1}});
}

}  // namespace
