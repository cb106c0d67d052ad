// The common factors of two shapes with the same row-major elements. Boundaries that both shapes have separate factors.
// Dimensions between boundaries of only one shape are unsharded, except for their largest common major part, along
// which equal chunks agree.
#include <numeric>

#include "dtensor/rule.h"

namespace dtensor {
namespace {

class ViewFactors {
 public:
  ViewFactors(at::IntArrayRef in, at::IntArrayRef out) : in_(in), out_(out) {
    in_dims_.resize(in.size());
    out_dims_.resize(out.size());
  }

  Rule make() {
    has_elements() ? walk() : match_empty();
    return std::move(rule_.operand(in_dims_).result(out_dims_));
  }

 private:
  bool has_elements() const {
    return std::find(in_.begin(), in_.end(), 0) == in_.end() && std::find(out_.begin(), out_.end(), 0) == out_.end();
  }

  // Without elements, row-major order does not relate dimensions; equal leading dimensions are matched.
  void match_empty() {
    for (std::size_t d = 0; d < std::min(in_.size(), out_.size()) && in_[d] == out_[d]; ++d) {
      in_dims_[d] = out_dims_[d] = {rule_.factor({}, in_[d])};
    }
  }

  void walk() {
    for (;;) {
      next(in_, i_, in_left_);
      next(out_, o_, out_left_);
      if (in_left_ == 1 && out_left_ == 1) return;
      const std::int64_t common = std::gcd(in_left_, out_left_);
      if (common > 1) share(common);
      if (in_left_ > 1 && out_left_ > 1) skip_to_common_boundary();
    }
  }

  // Advances to the next dimension with remaining elements; `left` is 1 at the end.
  static void next(at::IntArrayRef sizes, std::size_t& at, std::int64_t& left) {
    while (left == 1 && at < sizes.size()) left = sizes[at++];
  }

  void share(std::int64_t size) {
    const int factor = rule_.factor({}, size);
    in_dims_[i_ - 1].push_back(factor);
    out_dims_[o_ - 1].push_back(factor);
    in_left_ /= size;
    out_left_ /= size;
  }

  void keep_unsharded(Rule::DimFactors& dim, std::int64_t size) {
    const int factor = rule_.factor({}, size);
    rule_.unsharded_factor(factor);
    dim.push_back(factor);
  }

  // in_left_ and out_left_ have no common divisor: both sides are unsharded until their products agree.
  void skip_to_common_boundary() {
    std::int64_t in_product = in_left_, out_product = out_left_;
    keep_unsharded(in_dims_[i_ - 1], in_left_);
    keep_unsharded(out_dims_[o_ - 1], out_left_);
    while (in_product != out_product) {
      const bool advance_in = in_product < out_product;
      const std::int64_t size = advance_in ? in_[i_] : out_[o_];
      if (size > 1) keep_unsharded(advance_in ? in_dims_[i_] : out_dims_[o_], size);
      advance_in ? (in_product *= in_[i_++]) : (out_product *= out_[o_++]);
    }
    in_left_ = out_left_ = 1;
  }

  at::IntArrayRef in_, out_;
  Rule rule_;
  Rule::Term in_dims_, out_dims_;
  std::size_t i_ = 0, o_ = 0;
  std::int64_t in_left_ = 1, out_left_ = 1;
};

}  // namespace

Rule Rule::view(at::IntArrayRef in_sizes, at::IntArrayRef out_sizes) { return ViewFactors(in_sizes, out_sizes).make(); }

}  // namespace dtensor
