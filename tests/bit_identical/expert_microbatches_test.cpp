// Gradients of microbatches of MixtureOfExperts that are added in turn have the bits of the batch on one device, or are
// refused by name.
#include "bit_identical/packed_layers.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using namespace packed_layers;
using Parts = std::vector<std::int64_t>;

// The same batch in one part.
Case in_one_part(Case c) {
  c.parts = {std::accumulate(c.parts.begin(), c.parts.end(), std::int64_t{0})};
  return c;
}

Case case_of(const Parts& parts) {
  Case c{options_of()};
  c.options.router.z_loss = 0.01;
  c.options.shared_ffn = 20, c.options.shared_gate = true, c.options.balance_rate = 0.1;
  c.parts = parts, c.returns_loss = false;
  return c;
}

std::vector<Layout> layouts() {
  const Placements rows{Shard(0), Shard(0)}, sequences{Shard(0), Shard(1)};
  return {{},
          {{1, 2}, 2},
          {{2, 1}, 1, 1, rows, true},
          {{2, 1}, 2, 1, rows},
          {{3, 1}, 1, 1, rows, true},
          {{1, 2}, 1, 2},
          {{2, 2}, 2, 2, sequences},
          {{2, 2}, 2, 1, {Shard(0), Replicate()}, true},
          {{4, 1}, 1, 1, {Shard(1), Replicate()}}};
}

void expect_bits_of_one_part(const Case& c) {
  const auto expected = run_layout(in_one_part(c), {});
  for (const auto& layout : layouts()) EXPECT_NO_THROW(require_layout(c, layout, expected)) << text_of(layout);
}

TEST(BitIdenticalExpertMicrobatches, HaveTheBitsOfTheBatch) {
  for (const Parts& parts : {Parts{4}, {2, 2}, {4, 2}, {2, 2, 2}, {2, 2, 1}}) {
    SCOPED_TRACE(c10::str("parts of ", parts, " sequences"));
    expect_bits_of_one_part(case_of(parts));
  }
}

TEST(BitIdenticalExpertMicrobatches, ExpertsWithoutRowsInOnePartOrAllHaveTheBitsOfTheBatch) {
  for (const Parts& parts : {Parts{2, 2}, {2, 2, 2}}) {
    auto c = case_of(parts);
    c.absent_after = parts[0];
    SCOPED_TRACE(c10::str("parts of ", parts, " sequences"));
    expect_bits_of_one_part(c);
  }
}

struct Refused {
  const char* name;
  std::function<void(Case&)> change;
};

TEST(BitIdenticalExpertMicrobatches, OtherFunctionsOfAPartAreRefusedByName) {
  const std::vector<Refused> all{
      {"aux_loss", [](Case& c) { c.options.router.aux_loss = 0.1; }},
      {"scale_expert_gradients", [](Case& c) { c.options.scale_expert_gradients = true; }},
      {"the capacity", [](Case& c) { c.dispatch = DispatchKind::capacity; }},
      {"RouterChoice::round_robin",
       [](Case& c) { c.options.router.choice = RouterChoice::round_robin, c.options.router.top_k = 1; }},
      {"rounded to a half type", [](Case& c) { c.options.tensor = at::TensorOptions(at::kBFloat16); }},
      {"not powers of two",
       [](Case& c) {
         c.parts = {3, 1};
       }},
      {"a smaller microbatch",
       [](Case& c) {
         c.parts = {2, 1, 1};
       }},
      {"at most 3", [](Case& c) {
         c.parts = {1, 1, 1, 1};
       }}};
  for (const auto& [name, change] : all) {
    Case c = case_of({1, 1});
    change(c);
    for (const Layout& layout : {Layout{}, Layout{{1, 2}, 2}}) {
      const auto error = error_of([&] { run_layout(c, layout); });
      EXPECT_NE(error.find(name), std::string::npos) << name << ": " << error;
      EXPECT_NE(error.find("has no bit-identical form"), std::string::npos) << error;
    }
  }
}

// Forced balance goes on with the next expert where a part's entries are a multiple of the number of experts.
TEST(BitIdenticalExpertMicrobatches, ForcedBalanceHasTheBitsOfTheBatch) {
  auto c = case_of({2, 2});
  c.options.router.choice = RouterChoice::round_robin;
  expect_bits_of_one_part(c);
}

bool has_form(const Case& c) {
  const auto& o = c.options;
  if (c.parts.size() == 1) return true;
  return o.router.aux_loss == 0 && !o.scale_expert_gradients && c.dispatch != DispatchKind::capacity &&
         o.tensor.dtype() != at::kBFloat16 && c.parts[0] != 3;
}

void parts_have_the_bits_of_the_batch() {
  auto c = drawn_case();
  c.returns_loss = false;
  c.parts = one_of<Parts>({{1, 1}, {2, 2}, {4, 2}, {2, 2, 2}, {2, 2, 1}, {3, 1}});
  if (one_of({true, true, false})) {  // most draws have a form
    c.options.router.aux_loss = 0, c.options.scale_expert_gradients = false;
    c.dispatch = one_of({DispatchKind::all_to_all, DispatchKind::padded});
  }
  const auto layout = drawn_layout();
  if (has_form(c)) return require_layout(c, layout, run_layout(in_one_part(c), {}));
  const auto error = error_of([&] { run_layout(c, layout); });
  TORCH_CHECK(error.find("has no bit-identical form") != std::string::npos, text_of(layout), ": was not refused");
}

TEST(BitIdenticalExpertMicrobatches, AnyOptionsAndLayoutHaveTheBitsOfTheBatchOrAreRefused) {
  check_property("microbatches of experts in a BitIdentical scope", parts_have_the_bits_of_the_batch, 60);
}

}  // namespace
}  // namespace dtensor::test
