// The example `train` has the losses and gradient norms of one device to the last bit, on every layout.
#include <gtest/gtest.h>

#include "bit_identical/bits.h"
#include "bit_identical/layouts.h"

namespace dtensor::test {
namespace {

void expect_layouts(const train::Options& options, const std::vector<int>& worlds) {
  const auto expected = train::train_on_one_device(options, corpus_of_layouts());
  for (const int ranks : worlds) {
    for (const auto& layout : (options.experts ? expert_layouts_of : layouts_of)(options, ranks)) {
      EXPECT_NO_THROW(run_local(ranks, [&](const Communicator& w) { check_layout(w, layout, expected); }))
          << layout.name;
    }
  }
}

TEST(BitIdenticalLayouts, AdamWHasTheCurveOfOneDevice) { expect_layouts(same_bits_options(), {2, 4}); }

TEST(BitIdenticalLayouts, PackedDocumentsHaveTheCurveOfOneDevice) {
  auto options = same_bits_options();
  options.documents = true, options.end_of_document = 'e';
  expect_layouts(options, {2});
}

// Six rows are three parts of two, which the tree of the batch adds as (a + b) + c.
TEST(BitIdenticalLayouts, ThreeMicrobatchesHaveTheCurveOfOneDevice) {
  auto options = same_bits_options();
  options.batch = 6;
  expect_layouts(options, {2});
  options.predict_tokens = 2, options.documents = true, options.end_of_document = 'e';
  expect_layouts(options, {2});
}

TEST(BitIdenticalLayouts, MuonHasTheCurveOfOneDevice) {
  auto options = same_bits_options();
  options.optimizer = "muon";
  expect_layouts(options, {2, 4});
}

TEST(BitIdenticalLayouts, ExpertsHaveTheCurveOfOneDevice) {
  auto options = same_bits_options();
  options.layers = 2;
  auto& experts = options.experts.emplace();
  experts.experts = 4, experts.z_loss = 0.01, experts.shared = 32;
  expect_layouts(options, {2, 4});
  experts.balance = "bias", options.optimizer = "muon";
  expect_layouts(options, {2});
  options.batch = 6, options.documents = true, options.end_of_document = 'e';
  expect_layouts(options, {2});
}

// A run on one mesh is resumed on another.
TEST(BitIdenticalLayouts, ResumedRunsHaveTheCurveOfOneDevice) {
  auto first = same_bits_options();
  first.steps = 3;
  auto rest = first;
  const auto expected = train::train_on_one_device(first, corpus_of_layouts());
  first.steps = 1, first.mesh = train::MeshShape{.shard = 2}, rest.mesh = train::MeshShape{.tp = 2};
  first.save = rest.load = (std::filesystem::temp_directory_path() / "dtensor_same_bits").string();
  run_local(2, [&](const Communicator& world) {
    train::train_on_mesh(world, first, corpus_of_layouts(), {});
    const std::vector<train::StepRecord> after(expected.begin() + first.steps, expected.end());
    check_layout(world, {"resumed", rest}, after);
  });
  std::filesystem::remove_all(first.save);
}

}  // namespace
}  // namespace dtensor::test
