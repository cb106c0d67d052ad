// Models train on a tokenizer's tokens with a vocabulary that is split over ranks.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "dtensor/launch.h"
#include "support/data.h"
#include "support/folder.h"
#include "train/layouts/compare.h"
#include "train/run.h"

namespace {

const tokenizer::Tokenizer& shipped() {
  static const auto tokenizer = train::read_tokenizer("shipped");
  return tokenizer;
}

train::Options options() {
  train::Options o;
  o.dtype = train::Dtype::float64, o.warmup = 2;
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

TEST(Tokenizer, ModelsTrainOnTokens) {
  auto o = options();
  o.vocabulary = shipped().size();
  const auto corpus = train::Corpus::read({dtensor::test::data_path("oracles/optim.json")}, o.seq, &shipped());
  EXPECT_LT(corpus.tokens(), corpus.bytes());
  expect_one_device(o, corpus, {{1, 1, 2}, {1, 2, 1}});
}

// The end-of-text token ends each file and each piece of text in a sequence; attention does not cross it.
TEST(Tokenizer, EndOfTextTokenEndsDocuments) {
  const dtensor::test::Folder folder;
  std::ofstream(folder / "a.txt") << "int a;";
  std::ofstream(folder / "b.txt") << "int b;";
  const auto end = shipped().encode(train::end_of_text(shipped()));
  ASSERT_EQ(end.size(), 1U);
  const auto files = train::Corpus::read({folder.str()}, 2, &shipped());
  EXPECT_EQ(files.bytes(), 12U);
  EXPECT_EQ(files.tokens(), shipped().encode("int a;").size() + shipped().encode("int b;").size() + 2);

  auto o = options();
  o.vocabulary = shipped().size();
  o.documents = true, o.end_of_document = end[0];
  const auto corpus = train::Corpus::read({dtensor::test::data_path("oracles/optim.json")}, o.seq, &shipped());
  const auto batch = corpus.batch(o.seed, 0, {o.batch, o.seq, true, o.end_of_document});
  EXPECT_GE((batch.ids == end[0]).sum().item<std::int64_t>(), o.batch);
  expect_one_device(o, corpus, {{1, 1, 2}, {1, 2, 1}});
  for (const bool ends : {true, false}) {
    o.end_of_document = ends ? end[0] : 1000;
    train::Gpt model(train::gpt_config(o));
    for (const at::Tensor& p : model.parameters()) p.detach().normal_();
    const auto after = [&](std::int64_t first) {
      const at::Tensor ids = at::tensor({first, std::int64_t{end[0]}, std::int64_t{7}}).unsqueeze(0);
      return model(ids, train::documents_of(ids, o.end_of_document)).logits.front().select(1, 2);
    };
    EXPECT_EQ(at::equal(after(5), after(6)), ends);
  }
}

// 50257 is odd: two ranks of tp have 25129 and 25128 classes. Ids and targets cover the vocabulary, so both ranks look
// up ids and have targets.
TEST(Tokenizer, VocabularyOf50257IsUsedOnBothRanks) {
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
