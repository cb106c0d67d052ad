// Experts that run in the engine, on the rows of all ranks that hold them.
#include "moe/experts/expert_rows.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "internal/bit_identical.h"
#include "internal/microbatch_sums.h"
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

}  // namespace

at::Tensor run_packed_on_holders(const at::Tensor& rows, at::IntArrayRef counts, const ExpertWeights& weights,
                                 ExpertActivation activation, const DeviceMesh& holders) {
  SharedCounts shared(at::tensor(counts, at::kLong));
  const auto of_holders = shared.of_ranks(holders.size(0) > 1 ? holders.communicator(0) : Communicator());
  const auto pieces = rows.split_with_sizes(counts, 0);
  // The gradient of unbind() moves those of the experts; that of select() would add zeros to them.
  const auto w1 = weights.w1.unbind(), w2 = weights.w2.unbind();
  const auto w3 = weights.w3.defined() ? weights.w3.unbind() : std::vector<at::Tensor>(w1.size());
  std::vector<at::Tensor> made;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    ExpertWeights own{weight_on(w1[e], holders, 0), weight_on(w2[e], holders, 1)};
    if (w3[e].defined()) own.w3 = weight_on(w3[e], holders, 0);
    const auto sizes = of_holders.select(1, static_cast<std::int64_t>(e)).contiguous();
    const auto* first = sizes.const_data_ptr<std::int64_t>();
    made.push_back(run_on_holders(
        pieces[e], holders, {first, first + sizes.numel()},
        [&](const at::Tensor& x) { return run_expert(x, own, activation); }, "MixtureOfExperts: an expert"));
  }
  return refuse_microbatches(at::cat(made));
}

namespace {

struct ExpertResultsBackward final : Node {
  variable_list apply(variable_list&& grads) override {
    note_indivisible_sum("sums over rows of experts");
    return std::move(grads);
  }
  std::string name() const override { return "ExpertResultsBackward"; }
};

}  // namespace

at::Tensor refuse_microbatches(const at::Tensor& results) {
  if (!is_bit_identical() || !needs_graph(results)) return results;
  at::Tensor same;
  {
    const LocalBelowAutogradGuard guard;
    same = results.view(results.sizes());
  }
  return with_node(same, make_node<ExpertResultsBackward>(), results);
}

}  // namespace dtensor::moe
