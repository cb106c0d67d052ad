// Models train on a tokenizer's tokens, whose ids fill a vocabulary that is split over ranks.
#include <gtest/gtest.h>

#include <set>

#include "dtensor/launch.h"
#include "support/data.h"
#include "train/compare.h"
#include "train/run.h"

namespace {

const tokenizer::Tokenizer& shipped() {
  static const auto tokenizer = train::read_tokenizer("shipped");
  return tokenizer;
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
