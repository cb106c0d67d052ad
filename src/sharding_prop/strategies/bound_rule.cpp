// Binds the terms of a rule to the tensors of a call.
#include "sharding_prop/strategies/bound_rule.h"

namespace dtensor {

const Term* term_for(const std::vector<Term>& terms, std::size_t index) {
  if (index < terms.size()) return &terms[index];
  return !terms.empty() && terms.back().repeat ? &terms.back() : nullptr;
}

namespace {

at::IntArrayRef sizes_of(const OperandState& tensor) { return tensor.operand->sizes; }
at::IntArrayRef sizes_of(const ResultState& tensor) { return tensor.meta->sizes; }

class Binder {
 public:
  explicit Binder(BoundRule& bound) : p_(bound), data_(*bound.data) {}

  void bind() {
    for (const Factor& factor : data_.factors) p_.factors.push_back({factor});
    batch_rank_ = std::max(batch_rank(p_.operands, data_.operands), batch_rank(p_.results, data_.results));
    first_batch_ = static_cast<int>(p_.factors.size());
    for (std::int64_t i = 0; i < batch_rank_; ++i) p_.factors.push_back({data_.batch});
    bind_terms(p_.operands, data_.operands);
    bind_terms(p_.results, data_.results);
    bind_outs();
    each([&](auto& tensor) { take_sizes(tensor); });
    each([&](auto& tensor) { solve_compounds(tensor); });
    bind_optional(p_.operands, data_.operands);
    bind_optional(p_.results, data_.results);
    for (std::size_t r = 0; r < p_.results.size(); ++r) {
      const Term* term = term_for(data_.results, r);
      p_.results[r].always_replicated = term != nullptr && (term->absent || (term->optional && p_.results[r].absent));
      if (term != nullptr) p_.results[r].reads = term->reads;
    }
    each([&](auto& tensor) { drop_size_one_dims(tensor); });
    each([&](auto& tensor) { check_sizes(tensor); });
    mark_contracted();
  }

 private:
  template <class Fn>
  void each(Fn fn) {
    for (OperandState& tensor : p_.operands) {
      if (tensor.used) fn(tensor);
    }
    for (ResultState& tensor : p_.results) {
      if (tensor.used) fn(tensor);
    }
  }

  template <class Tensors>
  std::int64_t batch_rank(const Tensors& tensors, const std::vector<Term>& terms) const {
    std::int64_t rank = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Term* term = term_for(terms, i);
      if (!tensors[i].used || term == nullptr || term->ellipsis < 0) continue;
      rank = std::max(rank, tensors[i].rank - static_cast<std::int64_t>(term->dims.size()));
    }
    return rank;
  }

  template <class Tensors>
  void bind_terms(Tensors& tensors, const std::vector<Term>& terms) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& tensor = tensors[i];
      const Term* term = term_for(terms, i);
      tensor.absent = term == nullptr || term->absent;
      tensor.dims.resize(static_cast<std::size_t>(tensor.rank));
      if (!tensor.used || tensor.absent || term->optional) continue;
      tensor.once = term->once;
      bind_term(tensor, *term);
      replicated_where_absent(tensor, *term);
    }
  }

  // Binds tensors that have the term's sizes; all others are never sharded.
  template <class Tensors>
  void bind_optional(Tensors& tensors, const std::vector<Term>& terms) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& tensor = tensors[i];
      const Term* term = term_for(terms, i);
      if (!tensor.used || tensor.absent || !term->optional) continue;
      tensor.absent = tensor.rank != std::ssize(term->dims);
      if (!tensor.absent) bind_term(tensor, *term);
      for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
        const std::int64_t size = product(tensor.dims[d]);
        tensor.absent |=
            !tensor.dims[d].empty() && !is_elastic(tensor.dims[d]) && size >= 0 && size != sizes_of(tensor)[d];
      }
      if (tensor.absent) replicated_beside(tensor, *term);
      if (tensor.absent) tensor.dims.assign(tensor.dims.size(), {});
      take_sizes(tensor);
    }
  }

  // An operand of other sizes is replicated and unshards the factors of its term, since parts of the others would
  // broadcast differently.
  void replicated_beside(const ResultState&, const Term&) {}
  void replicated_beside(const OperandState& tensor, const Term& term) {
    if (c10::multiply_integers(sizes_of(tensor)) <= 1) return;
    for (const Rule::DimFactors& dim : term.dims) {
      for (const int f : dim) p_.factors[static_cast<std::size_t>(f)].unsharded = true;
    }
  }

  // A result that lacks batch dimensions is not a sum over them.
  void replicated_where_absent(const OperandState&, const Term&) {}
  void replicated_where_absent(const ResultState& result, const Term& term) {
    if (term.ellipsis < 0) return;
    const std::int64_t batch = std::max<std::int64_t>(result.rank - std::ssize(term.dims), 0);
    for (std::int64_t i = 0; i < batch_rank_ - batch; ++i) {
      p_.factors[static_cast<std::size_t>(first_batch_ + i)].unsharded = true;
    }
  }

  std::int64_t product(const Rule::DimFactors& dim) const {
    std::int64_t size = 1;
    for (const int f : dim) size *= p_.factors[static_cast<std::size_t>(f)].size;
    return size;
  }

  bool is_elastic(const Rule::DimFactors& dim) const {
    return dim.size() == 1 && p_.factors[static_cast<std::size_t>(dim[0])].elastic;
  }

  // Dimensions are aligned at the right; a tensor of lower rank lacks the leading ones (broadcasting).
  void bind_term(TensorState& tensor, const Term& term) const {
    const auto explicit_rank = static_cast<std::int64_t>(term.dims.size());
    const std::int64_t batch = term.ellipsis < 0 ? 0 : std::max<std::int64_t>(tensor.rank - explicit_rank, 0);
    TORCH_CHECK(tensor.rank <= explicit_rank + batch, p_.call->info->name(), ": rule '", p_.rule.notation(), "' has ",
                explicit_rank, " dimensions, but a tensor has ", tensor.rank);
    Rule::DimFactors* out = tensor.dims.end();
    for (std::int64_t i = explicit_rank; i >= 0 && out != tensor.dims.begin(); --i) {
      if (i < explicit_rank) *--out = term.dims[static_cast<std::size_t>(i)];
      if (i != term.ellipsis) continue;
      for (std::int64_t b = 0; b < batch; ++b) {
        *--out = {first_batch_ + static_cast<int>(batch_rank_ - 1 - b)};
      }
    }
  }

  // An out= operand has the placements of its result.
  void bind_outs() {
    for (OperandState& tensor : p_.operands) {
      if (!tensor.out || !tensor.used || tensor.out_result < 0) continue;
      const ResultState& result = p_.results[static_cast<std::size_t>(tensor.out_result)];
      tensor.used = false;
      tensor.absent = result.absent;
    }
  }

  template <class T>
  void take_sizes(const T& tensor) {
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
      if (tensor.dims[d].size() != 1) continue;
      FactorState& factor = p_.factors[static_cast<std::size_t>(tensor.dims[d][0])];
      if (factor.size < 0 || factor.size == 1) factor.size = sizes_of(tensor)[d];
    }
  }

  // Computes the size of the one factor of a compound dimension that has no size yet.
  template <class T>
  void solve_compounds(const T& tensor) {
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
      if (tensor.dims[d].size() < 2) continue;
      std::int64_t known = 1;
      FactorState* unknown = nullptr;
      for (const int f : tensor.dims[d]) {
        FactorState& factor = p_.factors[static_cast<std::size_t>(f)];
        if (factor.size < 0) unknown = &factor;
        if (factor.size >= 0) known *= factor.size;
      }
      if (unknown != nullptr && known > 0) unknown->size = sizes_of(tensor)[d] / known;
    }
  }

  // Removes factors of size 1 from compound dimensions; they do not affect the split of the others.
  void drop_size_one_dims(TensorState& tensor) {
    for (Rule::DimFactors& dim : tensor.dims) {
      if (dim.size() < 2) continue;
      const auto is_unit = [&](int f) { return p_.factors[static_cast<std::size_t>(f)].size == 1; };
      dim.erase(std::remove_if(dim.begin(), dim.end(), is_unit), dim.end());
      mark_majors(dim);
    }
  }

  void mark_majors(const Rule::DimFactors& dim) {
    for (std::size_t i = 0; i + 1 < dim.size(); ++i) p_.factors[static_cast<std::size_t>(dim[i])].even = true;
  }

  // A factor that occurs in two dimensions of one tensor (a diagonal) is unsharded.
  void check_repeats(const TensorState& tensor) {
    c10::SmallVector<int, 8> seen;
    for (const Rule::DimFactors& dim : tensor.dims) {
      for (const int f : dim) {
        if (std::find(seen.begin(), seen.end(), f) != seen.end())
          p_.factors[static_cast<std::size_t>(f)].unsharded = true;
        seen.push_back(f);
      }
    }
  }

  template <class T>
  void check_sizes(T& tensor) {
    check_repeats(tensor);
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
      Rule::DimFactors& dim = tensor.dims[d];
      if (dim.empty()) continue;
      const std::int64_t size = sizes_of(tensor)[d];
      if (product(dim) == size || is_elastic(dim)) continue;
      if (size != 1 || data_.exact || std::is_same_v<T, ResultState>) {
        for (const int f : dim) p_.factors[static_cast<std::size_t>(f)].unsharded = true;
      }
      dim.clear();
    }
  }

  void mark_contracted() {
    for (std::size_t f = 0; f < p_.factors.size(); ++f) {
      p_.factors[f].contracted = std::any_of(p_.results.begin(), p_.results.end(), [&](const ResultState& result) {
        return result.used && !result.always_replicated && !result.has(static_cast<int>(f));
      });
    }
  }

  BoundRule& p_;
  const RuleData& data_;
  std::int64_t batch_rank_ = 0;
  int first_batch_ = 0;
};

}  // namespace

void bind_rule(BoundRule& bound) {
  bound.data = &bound.rule.data();
  Binder(bound).bind();
}

}  // namespace dtensor
