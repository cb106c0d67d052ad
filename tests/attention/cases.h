// Attention cases for tests, and their expected results from explicit formulas.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>

#include "support/ranks.h"

namespace dtensor::test {

struct Case {
  Shape mesh{2};
  std::int64_t batch = 2, heads = 4, groups = 4, queries = 8, keys = 8, features = 4, values = 4;
  at::ScalarType dtype = at::kDouble;
  AttentionOptions options;  // the mask is the full tensor
  std::vector<Placements> where{{Shard(2)}, {Shard(2)}, {Shard(2)}};
  Placements mask_where;  // empty: the mask is a regular tensor
  AttentionStrategy strategy = AttentionStrategy::automatic;
  std::vector<std::vector<std::int64_t>> rows;  // documents of each batch row; they replace options.documents
  Placements rows_where;                        // empty: row_cu_seqlens is a regular tensor
  bool by_aten = true;                          // at::scaled_dot_product_attention
  // If > 0, q and k are integers times this power of two, so that scores are exact in any order of summation.
  double large = 0;
  std::uint64_t seed = 1;

  std::string str() const {
    auto text = c10::str("mesh ", mesh, " B ", batch, " H ", heads, " G ", groups, " L ", queries, " S ", keys, " E ",
                         features, " F ", values, " ", dtype, options.causal ? " causal" : "", " window ",
                         options.window, " documents ", options.documents, " dropout ", options.dropout,
                         options.sinks.defined() ? " sinks" : "", " ", to_string(strategy), by_aten ? " ATen" : "");
    for (const auto& p : where) text += " " + to_string(p);
    for (const auto& row : rows) text += c10::str(" row ", row);
    if (large > 0) text += c10::str(" integers times ", large);
    if (options.mask.defined()) {
      text += c10::str(" mask ", options.mask.scalar_type(), options.mask.sizes(), " ", to_string(mask_where));
    }
    return text + c10::str(" seed ", seed);
  }
};

struct Tensors {
  at::Tensor q, k, v, grad;
  std::vector<at::Tensor> inputs(const Case& c) const {
    return c.options.sinks.defined() ? std::vector{q, k, v, c.options.sinks} : std::vector{q, k, v};
  }
};

inline Tensors tensors_of(const Case& c) {
  Draw draw(c.seed);
  Tensors t{draw.normal({c.batch, c.heads, c.queries, c.features}, c.dtype),
            draw.normal({c.batch, c.groups, c.keys, c.features}, c.dtype),
            draw.normal({c.batch, c.groups, c.keys, c.values}, c.dtype),
            draw.normal({c.batch, c.heads, c.queries, c.values}, c.dtype)};
  if (c.large > 0) t.q.round_().mul_(c.large), t.k.round_().mul_(c.large);
  return t;
}

// Mask of visible query-key pairs, computed element by element.
inline at::Tensor seen_in(const Case& c, const std::vector<std::int64_t>& documents) {
  auto seen = at::ones({c.queries, c.keys}, at::kBool);
  const auto document = [&](std::int64_t i) {
    std::int64_t d = 0;
    for (const auto start : documents) d += i >= start ? 1 : 0;
    return d;
  };
  auto* data = seen.data_ptr<bool>();
  for (std::int64_t i = 0; i < c.queries; ++i) {
    for (std::int64_t j = 0; j < c.keys; ++j) {
      const bool hidden = (c.options.causal && j > i) || document(i) != document(j) ||
                          (c.options.window > 0 && std::abs(i - j) >= c.options.window);
      data[i * c.keys + j] = !hidden;
    }
  }
  return seen;
}

// The mask has sizes [L, S], or [B, 1, L, S] if each batch row has its own documents.
inline at::Tensor seen_in(const Case& c) {
  if (c.rows.empty()) return seen_in(c, c.options.documents);
  std::vector<at::Tensor> seen;
  for (const auto& documents : c.rows) seen.push_back(seen_in(c, documents));
  return at::stack(seen).unsqueeze(1);
}

// Returns the documents of batch rows in the format of attention().
inline at::Tensor row_cu_seqlens(const Case& c) {
  if (c.rows.empty()) return {};
  std::size_t most = 0;
  for (const auto& row : c.rows) most = std::max(most, row.size());
  const auto all = at::full({std::ssize(c.rows), static_cast<std::int64_t>(most)}, c.keys, at::kLong);
  for (std::size_t b = 0; b < c.rows.size(); ++b) {
    for (std::size_t d = 0; d < c.rows[b].size(); ++d) {
      all[static_cast<std::int64_t>(b)][static_cast<std::int64_t>(d)] = c.rows[b][d];
    }
  }
  return all;
}

// Result on one device. `kept` holds the dropout mask divided by the keep probability.
inline at::Tensor expected_result(const Case& c, const std::vector<at::Tensor>& in, const at::Tensor& kept) {
  const auto share = c.heads / c.groups;
  const auto repeat = [&](const at::Tensor& t) {
    return t.unsqueeze(2).expand({t.size(0), t.size(1), share, t.size(2), t.size(3)}).flatten(1, 2);
  };
  auto scores = at::einsum("bhle,bhse->bhls", {in[0], repeat(in[1])}) *
                c.options.scale.value_or(1 / std::sqrt(static_cast<double>(c.features)));
  scores = scores.masked_fill(~seen_in(c), -INFINITY);
  if (c.options.mask.defined()) {
    const bool boolean = c.options.mask.scalar_type() == at::kBool;
    scores = boolean ? scores.masked_fill(~c.options.mask, -INFINITY) : scores + c.options.mask;
  }
  auto top = c.keys > 0 ? scores.detach().amax(3, true) : at::zeros_like(scores.sum(3, true));
  if (in.size() == 4) top = at::maximum(top, in[3].detach().view({1, -1, 1, 1}));
  top = top.masked_fill(top.eq(-INFINITY), 0);
  auto weights = (scores - top).exp();
  auto sum = weights.sum(3, true);
  if (in.size() == 4) sum = sum + (in[3].view({1, -1, 1, 1}) - top).exp();
  weights = weights / sum.masked_fill(sum.eq(0), 1);
  if (kept.defined()) weights = weights * kept;
  return at::einsum("bhls,bhsf->bhlf", {weights, repeat(in[2])});
}

// Dropout mask for the current random state; the state is restored afterwards.
inline at::Tensor kept_of(const Case& c, const DeviceMesh& mesh) {
  if (c.options.dropout == 0) return {};
  const auto before = get_rng_state(mesh);
  const auto ones = distribute_tensor(at::ones({c.batch, c.heads, c.queries, c.keys}, c.dtype), mesh,
                                      Placements(static_cast<std::size_t>(mesh.ndim())));
  const auto kept = DTensor(at::dropout(ones, c.options.dropout, true)).full_tensor();
  set_rng_state(mesh, before);
  return kept;
}

inline void require(const at::Tensor& actual, const at::Tensor& expected, const Case& c, const std::string& what) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), what, " has sizes ", actual.sizes(), ", expected ", expected.sizes(),
              ": ", c.str());
  TORCH_CHECK(actual.scalar_type() == c.dtype, what, " is ", actual.scalar_type(), ": ", c.str());
  const double tolerance = c.dtype == at::kDouble ? 1e-9 : c.dtype == at::kFloat ? 2e-4 : 6e-2;
  const auto found = actual.to(expected.device(), expected.scalar_type());
  // Partial results are rounded to half types before they are added, so the error scales with the largest value.
  const bool half = c.dtype == at::kBFloat16 || c.dtype == at::kHalf;
  const double largest = half && expected.numel() > 0 ? expected.abs().max().item<double>() : 1;
  TORCH_CHECK(at::allclose(found, expected, tolerance, tolerance * std::max(largest, 1.0)), what, " is ",
              (found - expected).abs().max().item<double>(), " away from the expected value: ", c.str());
}

inline at::Tensor attend(const Case& c, const std::vector<at::Tensor>& in, const at::Tensor& mask) {
  if (c.by_aten) {
    const auto given = mask.defined() ? std::optional(mask) : std::nullopt;
    return at::scaled_dot_product_attention(in[0], in[1], in[2], given, c.options.dropout, c.options.causal,
                                            c.options.scale, c.heads != c.groups);
  }
  AttentionOptions options = c.options;
  options.mask = mask;
  options.sinks = in.size() == 4 ? in[3] : at::Tensor();
  options.row_cu_seqlens = row_cu_seqlens(c);
  if (!c.rows_where.empty() && is_dtensor(in[0])) {
    options.row_cu_seqlens = distribute_tensor(options.row_cu_seqlens, DTensor(in[0]).mesh(), c.rows_where);
  }
  return attention(in[0], in[1], in[2], options);
}

// Returns the inputs as DTensors that require gradients; sinks are Replicate.
inline std::vector<at::Tensor> distributed(const Case& c, const Tensors& t, const DeviceMesh& mesh) {
  std::vector<at::Tensor> in;
  const auto regular = t.inputs(c);
  for (std::size_t i = 0; i < regular.size(); ++i) {
    const auto where = i < 3 ? c.where[i] : Placements(static_cast<std::size_t>(mesh.ndim()));
    in.push_back(distribute_tensor(regular[i], mesh, where).detach().requires_grad_());
  }
  return in;
}

inline at::Tensor mask_on(const Case& c, const DeviceMesh& mesh) {
  if (!c.options.mask.defined() || c.mask_where.empty()) return c.options.mask;
  return distribute_tensor(c.options.mask, mesh, c.mask_where);
}

// Runs forward and backward on this rank of the mesh and compares with one device. Throws if they differ.
inline void check_case(const Case& c, const DeviceMesh& mesh) {
  manual_seed(mesh, c.seed);
  const auto t = tensors_of(c);
  std::vector<at::Tensor> regular;  // exact for half types
  const bool half = c.dtype == at::kBFloat16 || c.dtype == at::kHalf;
  const auto exact = half ? at::kDouble : c.dtype;
  for (const auto& x : t.inputs(c)) regular.push_back(x.detach().to(exact, false, true).requires_grad_());
  const auto expected = expected_result(c, regular, kept_of(c, mesh));
  const auto gradients = torch::autograd::grad({expected}, regular, {t.grad.to(exact)}, {}, false, true);
  const auto in = distributed(c, t, mesh);
  const AttentionStrategyScope scope(c.strategy);
  const auto result = attend(c, in, mask_on(c, mesh));
  require(DTensor(result).full_tensor(), expected, c, "the result");
  const auto grad = distribute_tensor(t.grad, mesh, DTensor(result).placements());
  const auto found = torch::autograd::grad({result}, in, {grad});
  const char* const names[] = {"dq", "dk", "dv", "dsinks"};
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto wanted = gradients[i].defined() ? gradients[i] : at::zeros_like(regular[i]);
    const double unit = c.large > 0 && i < 2 ? c.large : 1;  // gradients of q and k scale with k and q
    require(DTensor(found[i]).full_tensor() / unit, wanted / unit, c, names[i]);
  }
}

inline void check_case(const Case& c) {
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) { check_case(c, mesh); });
}

constexpr std::int64_t kItem = 8;  // bytes of a double

inline Case split_case(std::int64_t ranks, AttentionStrategy strategy) {
  Case c;
  c.mesh = {ranks};
  c.queries = c.keys = 24;
  c.heads = c.groups = 12;
  c.strategy = strategy;
  return c;
}

}  // namespace dtensor::test
