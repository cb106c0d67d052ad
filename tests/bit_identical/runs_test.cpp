// Runs of the example `train` with any layout, optimizer, dtype, number of microbatches, documents and experts, resumed
// on another mesh or not, end with the SHA-256 of one device. Exactly those without a form are refused by name.
// RC_PARAMS="max_success=300" runs more.
#include <ATen/Parallel.h>

#include <algorithm>
#include <map>

#include "bit_identical/layouts.h"
#include "support/draws.h"
#include "support/folder.h"

namespace dtensor::test {
namespace {

using train::MeshShape;
using train::Options;

constexpr std::int64_t kSteps = 3;

Options drawn_model() {
  auto o = same_bits_options();
  o.steps = kSteps, o.layers = 2, o.seq = one_of<std::int64_t>({32, 64}), o.batch = one_of<std::int64_t>({4, 5, 6});
  o.optimizer = one_of({"adamw", "muon"});
  o.bf16 = one_of({false, false, true});
  o.documents = one_of({false, true}), o.end_of_document = 'e';
  if (one_of({false, true})) {
    auto& e = o.experts.emplace();
    e.experts = 4, e.balance = one_of({"aux", "bias", "none"}), e.z_loss = one_of({0.0, 0.01});
    e.dispatcher = one_of({"all-to-all", "padded", "capacity"}), e.show_load = false;
  }
  return o;
}

// What is equal in all runs of a model.
std::string text_of(const Options& o) {
  auto text =
      c10::str(o.optimizer, " seq ", o.seq, " batch ", o.batch, o.bf16 ? " bf16" : "", o.documents ? " documents" : "");
  if (o.experts) text += c10::str(" experts ", o.experts->balance, " ", o.experts->z_loss, " ", o.experts->dispatcher);
  return text;
}

MeshShape drawn_mesh() {
  return one_of<MeshShape>({{},
                            {.tp = 2},
                            {.tp = 3},
                            {.tp = 4},
                            {.shard = 2},
                            {.shard = 3},
                            {.shard = 4},
                            {.cp = 2},
                            {.pp = 2},
                            {.replicate = 2, .shard = 2},
                            {.shard = 2, .tp = 2},
                            {.shard = 2, .cp = 2}});
}

Options drawn_layout(Options o) {
  o.mesh = drawn_mesh();
  o.parallel = one_of({"fsdp", "fsdp", o.bf16 ? "fsdp" : "plain"});
  o.sequence_parallel = o.mesh->tp > 1 && one_of({false, true});
  o.checkpoint_activations = one_of({false, true});
  o.cp_strategy = one_of({"auto", "ring", "gather", "ulysses"});
  o.zigzag_sequence = o.mesh->cp > 1 && o.cp_strategy != "ulysses" && one_of({false, true});
  o.grad_accum = o.mesh->pp > 1 ? 1 : one_of<std::int64_t>({1, 1, 1, 2, 3, 4});
  o.microbatches = one_of({1, 1, 1, 2, 3});
  if (o.mesh->pp > 1) o.schedule = *rc::gen::elementOf(pipeline::schedule_names());
  if (!o.experts) return o;
  o.experts->etp = o.mesh->tp == 3 ? 1 : one_of<std::int64_t>({1, o.mesh->tp});  // divides the width of an expert
  const auto rest = o.mesh->stage_size() / o.experts->etp;
  o.experts->ep = rest % 2 == 0 ? one_of<std::int64_t>({1, 2, rest}) : 1;
  return o;
}

std::string layout_text(const Options& o) {
  return c10::str(o.mesh->str(), " ", o.parallel, o.sequence_parallel ? " sequence" : "",
                  o.checkpoint_activations ? " recomputation" : "", " ", o.cp_strategy,
                  o.zigzag_sequence ? " zigzag" : "", " ", train::pieces_of_batch(o).size(), " parts",
                  o.mesh->pp > 1 ? " " + o.schedule : "",
                  o.experts ? c10::str(" ep ", o.experts->ep, " etp ", o.experts->etp) : "");
}

// Whether each part of a batch has the function of the batch.
bool sums_over_tokens(const train::ExpertFlags& experts) {
  return experts.balance != "aux" && experts.dispatcher != "capacity";
}

// Gradients of parts have a form for up to three, if all but the last are equal powers of two, and not for half types.
bool has_form(const Options& o) {
  const auto parts = train::pieces_of_batch(o);
  if (parts.size() == 1) return true;
  const auto rows = parts[0];
  const bool equal = std::all_of(parts.begin(), parts.end() - 1, [&](auto part) { return part == rows; });
  return parts.size() <= 3 && equal && parts.back() <= rows && (rows & (rows - 1)) == 0 && !o.bf16 &&
         (!o.experts || sums_over_tokens(*o.experts));
}

// The hash after the last step.
std::string run(const Options& options, int threads) {
  std::string hash;
  RunOptions ranks;
  ranks.set_threads = false;
  const int before = at::get_num_threads();
  run_local(
      static_cast<int>(options.mesh->size()),
      [&](const Communicator& world) {
        at::set_num_threads(threads);
        const auto records = train::train_on_mesh(world, options, corpus_of_layouts(), {});
        if (world.rank() == 0) hash = records.back().content_hash;
      },
      ranks);
  at::set_num_threads(before);
  return hash;
}

// Undefined if the run was refused by name.
std::optional<std::string> unless_refused(const Options& options, int threads) {
  try {
    return run(options, threads);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    TORCH_CHECK(what.find("has no bit-identical form") != std::string::npos, layout_text(options), ": ", what);
    return std::nullopt;
  }
}

const std::string& expected_hash(Options model) {
  static std::map<std::string, std::string> known;
  auto& hash = known[text_of(model)];
  model.mesh = MeshShape{};
  if (hash.empty()) hash = run(model, 1);
  return hash;
}

struct Counts {
  int equal = 0, refused = 0;
};
Counts counts;

void check_draw(const Options& options, int threads, const Options* before) {
  const bool expected = has_form(options) && (before == nullptr || has_form(*before));
  std::optional<std::string> hash;
  if (before == nullptr || unless_refused(*before, threads)) hash = unless_refused(options, threads);
  const auto text = c10::str(text_of(options), " on ", layout_text(options),
                             before == nullptr ? "" : ", after " + layout_text(*before), ", ", threads, " threads");
  RC_LOG() << text << "\n";
  TORCH_CHECK(hash.has_value() == expected, text, expected ? " was refused" : " was not refused");
  if (hash) TORCH_CHECK(*hash == expected_hash(options), text, ": hash ", *hash, ", expected ", expected_hash(options));
  ++(hash ? counts.equal : counts.refused);
}

void runs_have_equal_hashes() {
  const auto model = drawn_model();
  auto options = drawn_layout(model);
  const int threads = one_of({1, 2});
  if (one_of({true, true, false})) return check_draw(options, threads, nullptr);
  const Folder folder;
  auto before = drawn_layout(model);
  before.steps = 1, before.save = options.load = folder.str();
  check_draw(options, threads, &before);
}

TEST(BitIdenticalRuns, HaveTheHashOfOneDeviceOrAreRefusedByName) {
  counts = {};
  check_property("runs in a BitIdentical scope", runs_have_equal_hashes, 24);
  std::printf("%d equal hashes, %d runs refused by name\n", counts.equal, counts.refused);
  EXPECT_GT(counts.equal, 0);
}

}  // namespace
}  // namespace dtensor::test
