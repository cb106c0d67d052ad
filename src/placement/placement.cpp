// Placement values: construction with checks, hashing, the text form and its parser, which allows any whitespace
// between tokens.
#include "dtensor/placement.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>
#include <ostream>

namespace dtensor {
namespace {

std::int32_t checked_dim(std::int64_t dim) {
  TORCH_CHECK(dim >= std::numeric_limits<std::int32_t>::min() && dim <= std::numeric_limits<std::int32_t>::max(),
              "a placement's tensor dimension is out of range: ", dim);
  return static_cast<std::int32_t>(dim);
}

std::int32_t checked_factor(const char* name, std::int64_t dim, std::int64_t factor) {
  TORCH_CHECK(factor >= 1 && factor <= std::numeric_limits<std::int32_t>::max(), name, "(", dim, ", ", factor,
              "): expected a split factor in [1, 2^31)");
  return static_cast<std::int32_t>(factor);
}

}  // namespace

const char* to_string(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "max", "min", "product"};
  return kNames[static_cast<std::size_t>(op)];
}

Placement Placement::shard(std::int64_t dim) {
  Placement p;
  p.kind_ = Kind::shard;
  p.dim_ = checked_dim(dim);
  return p;
}

Placement Placement::strided_shard(std::int64_t dim, std::int64_t split_factor) {
  Placement p = shard(dim);
  p.kind_ = Kind::strided_shard;
  p.split_factor_ = checked_factor("StridedShard", dim, split_factor);
  return p;
}

Placement Placement::ragged_shard(std::int64_t dim, c10::IntArrayRef sizes) {
  TORCH_CHECK(!sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](auto n) { return n >= 0; }),
              "RaggedShard: expected a non-negative number of elements for each rank, got ", sizes);
  Placement p = shard(dim);
  p.kind_ = Kind::ragged_shard;
  p.ragged_ = std::make_shared<const std::vector<std::int64_t>>(sizes.vec());
  return p;
}

Placement Placement::zigzag_shard(std::int64_t dim, std::int64_t split_factor) {
  Placement p = shard(dim);
  p.kind_ = Kind::zigzag_shard;
  p.split_factor_ = checked_factor("ZigzagShard", dim, split_factor);
  return p;
}

// Only shards have different storage and compute placements, so the flag stays off elsewhere and equality is simple.
Placement Placement::as_storage(bool storage) const {
  Placement p = *this;
  p.storage_ = storage && is_shard();
  return p;
}

Placement Placement::with_dim(std::int64_t dim) const {
  TORCH_CHECK(is_shard(), "expected a shard, which has a tensor dimension, got ", str());
  Placement p = *this;
  p.dim_ = checked_dim(dim);
  return p;
}

std::size_t Placement::hash() const {
  const auto small = static_cast<std::size_t>(kind_) | static_cast<std::size_t>(op_) << 4 |
                     static_cast<std::size_t>(storage_) << 8 | static_cast<std::size_t>(split_factor_) << 16;
  std::size_t hash = c10::hash_combine(small, static_cast<std::size_t>(dim_));
  for (const std::int64_t size : ragged_sizes()) hash = c10::hash_combine(hash, static_cast<std::size_t>(size));
  return hash;
}

std::string Placement::str() const {
  const char* star = storage_ ? "*" : "";
  switch (kind_) {
    case Kind::replicate:
      return "R";
    case Kind::shard:
      return "S(" + std::to_string(dim_) + ")" + star;
    case Kind::strided_shard:
      return "SS(" + std::to_string(dim_) + ", " + std::to_string(split_factor_) + ")" + star;
    case Kind::ragged_shard:
      return "RS(" + std::to_string(dim_) + ", " + c10::str(c10::Join(" ", ragged_sizes())) + ")" + star;
    case Kind::zigzag_shard:
      return "Z(" + std::to_string(dim_) + (split_factor_ > 1 ? ", " + std::to_string(split_factor_) : "") + ")" + star;
    case Kind::partial:
      return std::string("P(") + to_string(op_) + ")";
  }
  return "?";
}

Placement BlockShard(std::int64_t dim, std::int64_t size, std::int64_t block, std::int64_t ranks) {
  TORCH_CHECK(size >= 0 && block >= 1 && ranks >= 1, "BlockShard(dim ", dim, ", size ", size, ", block ", block,
              ", ranks ", ranks, "): expected size >= 0, block >= 1 and ranks >= 1");
  const std::int64_t blocks = (size + block - 1) / block, most = (blocks + ranks - 1) / ranks * block;
  std::vector<std::int64_t> sizes;
  for (std::int64_t r = 0; r < ranks; ++r) sizes.push_back(std::min(size, most * (r + 1)) - std::min(size, most * r));
  return RaggedShard(dim, sizes);
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) { return out << placement.str(); }

std::string to_string(const Placements& placements) {
  std::string text = "[";
  for (const Placement& p : placements) {
    text += (text.size() > 1 ? ", " : "") + p.str();
  }
  return text + "]";
}

namespace {

constexpr const char* kGrammar =
    "the format is R, S(dim), SS(dim, split factor), RS(dim, size of each rank's part), Z(dim), Z(dim, pieces) or "
    "P(sum|avg|max|min|product), shards with an optional *; a list as [R, S(0)]";

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool accept(char c) {
    skip_whitespace();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found;
    return found;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "'");
  }
  void expect_end() {
    skip_whitespace();
    if (at_ != text_.size()) fail("the end");
  }
  std::string_view word() {
    skip_whitespace();
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  template <class Integer>
  Integer number() {
    skip_whitespace();
    Integer value = 0;
    const char* end = text_.data() + text_.size();
    const auto [rest, error] = std::from_chars(text_.data() + at_, end, value);
    if (error != std::errc()) fail("a number");
    at_ = static_cast<std::size_t>(rest - text_.data());
    return value;
  }
  [[noreturn]] void fail(const std::string& wanted) const {
    TORCH_CHECK(false, "not a placement: \"", text_, "\": expected ", wanted, " before \"", text_.substr(at_), "\" (",
                kGrammar, ")");
  }

 private:
  void skip_whitespace() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<ReduceOp> reduce_op_named(std::string_view name) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
    if (name == to_string(op)) return op;
  }
  return std::nullopt;
}

Placement read_partial(Reader& in) {
  in.expect('(');
  const auto op = reduce_op_named(in.word());
  if (!op) in.fail("the name of a reduction");
  in.expect(')');
  return Placement::partial(*op);
}

Placement read_strided(Reader& in, std::int64_t dim) {
  in.expect(',');
  const auto split_factor = in.number<std::int32_t>();
  if (split_factor < 1) in.fail("a split factor of at least 1");
  in.expect(')');
  return Placement::strided_shard(dim, split_factor);
}

Placement read_ragged(Reader& in, std::int64_t dim) {
  in.expect(',');
  std::vector<std::int64_t> sizes;
  do {
    sizes.push_back(in.number<std::int64_t>());
    if (sizes.back() < 0) in.fail("a non-negative size");
  } while (!in.accept(')'));
  return Placement::ragged_shard(dim, sizes);
}

Placement read_zigzag(Reader& in, std::int64_t dim) {
  if (in.accept(')')) return Placement::zigzag_shard(dim);
  return Placement::zigzag_shard(dim, read_strided(in, dim).split_factor());
}

Placement read_regular(Reader& in, std::int64_t dim) {
  in.expect(')');
  return Placement::shard(dim);
}

Placement read_shard(Reader& in, std::string_view name) {
  in.expect('(');
  const auto dim = in.number<std::int32_t>();
  const Placement shard = name == "S"    ? read_regular(in, dim)
                          : name == "SS" ? read_strided(in, dim)
                          : name == "Z"  ? read_zigzag(in, dim)
                                         : read_ragged(in, dim);
  return shard.as_storage(in.accept('*'));
}

Placement read_placement(Reader& in) {
  const std::string_view name = in.word();
  if (name == "R") return Placement::replicate();
  if (name == "P") return read_partial(in);
  if (name == "S" || name == "SS" || name == "RS" || name == "Z") return read_shard(in, name);
  in.fail("a placement");
}

}  // namespace

Placement parse_placement(std::string_view text) {
  Reader in(text);
  const Placement p = read_placement(in);
  in.expect_end();
  return p;
}

Placements parse_placements(std::string_view text) {
  Reader in(text);
  Placements placements;
  in.expect('[');
  if (!in.accept(']')) {
    do {
      placements.push_back(read_placement(in));
    } while (in.accept(','));
    in.expect(']');
  }
  in.expect_end();
  return placements;
}

}  // namespace dtensor
