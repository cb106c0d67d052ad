// Processes one batch row at a time.
#include "attention/passes/per_row_documents.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

namespace dtensor::attention_impl {
namespace {

at::Tensor row(const at::Tensor& t, std::int64_t b) { return t.narrow(0, b, 1); }

Inputs row(const Inputs& in, std::int64_t b) { return {row(in.q, b), row(in.k, b), row(in.v, b)}; }

// Position of local row b in the global batch.
Segment place_of(const Segments& held, std::int64_t b) {
  for (const Segment& s : held) {
    if (b < s.length) return {s.offset + b, 1};
    b -= s.length;
  }
  TORCH_INTERNAL_ASSERT(false, "row ", b, " beyond a rank's part of the batch");
}

Scores scores_of(const Scores& all, const std::vector<std::int64_t>& documents, std::int64_t b) {
  Scores scores = all;
  scores.pattern.documents = documents;
  scores.region.segments[0] = {place_of(all.region.segments[0], b)};
  if (all.mask.defined() && all.mask.size(0) > 1) scores.mask = row(all.mask, b);
  return scores;
}

at::Tensor empty_result(const Inputs& in) {
  at::DimVector sizes(in.q.sizes());
  sizes[3] = in.v.size(3);
  return at::empty_strided(sizes, at::infer_dense_strides(sizes, in.q.strides()), in.q.options());
}

}  // namespace

Forward forward_per_row(const Scores& scores, const Documents& documents, const SequenceParts& blocks, const Inputs& in,
                        const at::Tensor& sinks) {
  if (documents.empty()) return forward_pass(scores, blocks, in, sinks);
  const at::Tensor out = empty_result(in);
  std::vector<at::Tensor> lse, row_maxima;
  bool any_row_max = false;
  for (std::int64_t b = 0; b < std::ssize(documents); ++b) {
    const Scores own = scores_of(scores, documents[static_cast<std::size_t>(b)], b);
    const Forward result = forward_pass(own, blocks, row(in, b), sinks);
    row(out, b).copy_(result.out);
    lse.push_back(result.lse);
    any_row_max = any_row_max || result.row_max.defined();
    row_maxima.push_back(result.row_max.defined() ? result.row_max : at::zeros_like(result.lse));
  }
  return {out, at::cat(lse), any_row_max ? at::cat(row_maxima) : at::Tensor()};
}

Backward backward_per_row(const Scores& scores, const Documents& documents, const SequenceParts& blocks,
                          const Inputs& in, const Forward& result, const at::Tensor& grad, const at::Tensor& sinks) {
  if (documents.empty()) return backward_pass(scores, blocks, in, result, grad, sinks);
  Backward all{{at::empty_like(in.q), at::empty_like(in.k), at::empty_like(in.v)}, {}};
  for (std::int64_t b = 0; b < std::ssize(documents); ++b) {
    const Scores own = scores_of(scores, documents[static_cast<std::size_t>(b)], b);
    const Forward of_row{row(result.out, b), row(result.lse, b),
                         result.row_max.defined() ? row(result.row_max, b) : at::Tensor()};
    const auto found = backward_pass(own, blocks, row(in, b), of_row, row(grad, b), sinks);
    row(all.in.q, b).copy_(found.in.q);
    row(all.in.k, b).copy_(found.in.k);
    row(all.in.v, b).copy_(found.in.v);
    if (found.sinks.defined()) all.sinks = all.sinks.defined() ? all.sinks + found.sinks : found.sinks;
  }
  return all;
}

}  // namespace dtensor::attention_impl
