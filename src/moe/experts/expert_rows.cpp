// Experts as operators on DTensors: the rows of all ranks that hold them.
#include "moe/experts/expert_rows.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "internal/bit_identical.h"
#include "internal/microbatch_sums.h"
#include "moe/experts/linear_over_blocks.h"
#include "moe/local_function.h"
#include "moe/routing/router_parts.h"

namespace dtensor::moe {

RowSources row_sources(const DeviceMesh& mesh, std::int64_t edp, std::int64_t etp) {
  const auto here = mesh.coordinate().value();
  const auto index = [](const auto& coordinate, std::int64_t axis) { return axis < 0 ? 0 : coordinate[axis]; };
  RowSources sources(edp < 0 ? 1 : mesh.size(edp));
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    const auto other = mesh.coordinate_of(mesh.ranks()[i]).value();
    if (index(other, etp) == index(here, etp)) sources[index(other, edp)].push_back(i);
  }
  return sources;
}

void check_row_order(const char* layer, const DeviceMesh& mesh, const RowSources& sources, const TokenLayout& layout,
                     std::int64_t tokens) {
  const bool gaps = layout.index.defined() && !layout.index.equal(at::arange(layout.first, layout.first + tokens));
  const auto own = at::tensor({gaps ? -1 : layout.first, tokens}, at::kLong);
  const at::Tensor all = at::empty({mesh.size(), 2}, at::kLong);
  mesh.communicator().all_gather(all.unbind(), own).wait();
  const auto* known = all.const_data_ptr<std::int64_t>();
  std::int64_t next = 0;
  bool in_order = true;
  for (const auto& from : sources) {
    for (const auto rank : from) {
      const auto first = known[2 * rank], count = known[2 * rank + 1];
      in_order &= count == 0 || first >= next;
      next = count == 0 ? next : first + count;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(in_order, layer, " has no bit-identical form for tokens in another order than the ranks ",
                              "that hold an expert: use a mesh with ep as the last axis but etp");
}

at::Tensor run_on_holders(const at::Tensor& rows, const DeviceMesh& holders, const std::vector<std::int64_t>& sizes,
                          const std::function<at::Tensor(const at::Tensor&)>& expert, const std::string& name) {
  Placements where(holders.ndim());
  if (sizes.size() > 1) where[0] = RaggedShard(0, sizes);
  const DTensor input = DTensor::from_local(rows, holders, where, {c10::sum_integers(sizes), rows.size(1)});
  const auto made = expert(input);
  TORCH_CHECK(made.sizes() == input.sizes(), name, " returned sizes ", made.sizes(), " for an input of sizes ",
              input.sizes());
  TORCH_CHECK(is_dtensor(made), name, " returned a regular tensor for a DTensor");
  return DTensor(made).redistribute(where).to_local(where);
}

namespace {

// A weight of one expert, whose dimension `ffn` is split over the second axis of `holders`.
at::Tensor weight_on(const at::Tensor& local, const DeviceMesh& holders, std::int64_t ffn) {
  Placements where(holders.ndim());
  auto sizes = local.sizes().vec();
  if (holders.ndim() == 2) {
    where[1] = Shard(ffn);
    sizes[static_cast<std::size_t>(ffn)] *= holders.size(1);
  }
  return DTensor::from_local(local, holders, where, sizes);
}

// The experts' parts of a packed weight that is gathered for a pass. Backward gathers it again for the first expert and
// frees it after the last.
class PackedAgain {
 public:
  PackedAgain(RegatherWeight gather, std::int64_t experts) : gather_(std::move(gather)), experts_(experts) {}

  at::Tensor of(std::int64_t expert) {
    const LocalBelowAutogradGuard guard;
    if (left_ == 0) packed_ = gather_(), left_ = experts_;
    const auto own = packed_[expert];
    if (--left_ == 0) packed_.reset();
    return own;
  }

 private:
  RegatherWeight gather_;
  std::int64_t experts_, left_ = 0;
  at::Tensor packed_;
};

// A packed weight as one of each expert.
class PackedWeight {
 public:
  PackedWeight(const at::Tensor& packed, const RegatherWeight& again, const DeviceMesh& holders, std::int64_t ffn)
      : holders_(holders), ffn_(ffn) {
    if (packed.defined()) each_ = packed.unbind();  // its gradient moves those of the experts; select() would add zeros
    if (again) again_ = std::make_shared<PackedAgain>(again, packed.size(0));
  }

  // Undefined if the packed one is.
  at::Tensor of(std::int64_t expert) const {
    return each_.empty() ? at::Tensor() : weight_on(each_[static_cast<std::size_t>(expert)], holders_, ffn_);
  }
  RegatherWeight again(std::int64_t expert) const {
    if (!again_) return {};
    return [=, kept = again_, holders = holders_, ffn = ffn_] { return weight_on(kept->of(expert), holders, ffn); };
  }

 private:
  DeviceMesh holders_;
  std::int64_t ffn_;
  std::vector<at::Tensor> each_;
  std::shared_ptr<PackedAgain> again_;
};

}  // namespace

at::Tensor run_packed_on_holders(const at::Tensor& rows, at::IntArrayRef counts, const ExpertWeights& weights,
                                 ExpertActivation activation, const DeviceMesh& holders, const at::Tensor& blocks) {
  SharedCounts shared(at::tensor(counts, at::kLong));
  const auto of_holders = shared.of_ranks(holders.size(0) > 1 ? holders.communicator(0) : Communicator());
  const auto pieces = rows.split_with_sizes(counts, 0);
  const PackedWeight w1(weights.w1, weights.regather1, holders, 0), w2(weights.w2, weights.regather2, holders, 1),
      w3(weights.w3, weights.regather3, holders, 0);
  std::vector<at::Tensor> made;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const auto expert = static_cast<std::int64_t>(e);
    const ExpertWeights own{w1.of(expert),    w2.of(expert),    w3.of(expert),
                            w1.again(expert), w2.again(expert), w3.again(expert)};
    const auto column = of_holders.select(1, expert).contiguous();
    const auto* first = column.const_data_ptr<std::int64_t>();
    const std::vector<std::int64_t> sizes(first, first + column.numel());
    const auto of_blocks = blocks.defined() ? row_blocks(blocks[expert], sizes) : RowBlocks();
    const auto linear = [&](const at::Tensor& x, const at::Tensor& w, const RegatherWeight& again) {
      return linear_over_blocks(x, w, of_blocks, again);
    };
    made.push_back(run_on_holders(
        pieces[e], holders, sizes, [&](const at::Tensor& x) { return run_expert(x, own, activation, linear); },
        "MixtureOfExperts: an expert"));
  }
  return at::cat(made);
}

namespace {

struct ExpertResultsBackward final : Node {
  explicit ExpertResultsBackward(const char* w) : what(w) {}
  variable_list apply(variable_list&& grads) override {
    note_indivisible_sum(what);
    return std::move(grads);
  }
  std::string name() const override { return "ExpertResultsBackward"; }
  const char* what;
};

}  // namespace

at::Tensor refuse_microbatches(const at::Tensor& results, const char* what) {
  if (what == nullptr || !is_bit_identical() || !needs_graph(results)) return results;
  at::Tensor same;
  {
    const LocalBelowAutogradGuard guard;
    same = results.view(results.sizes());
  }
  return with_node(same, make_node<ExpertResultsBackward>(what), results);
}

}  // namespace dtensor::moe
