// Parses the text form of placements that str() and to_string() print, with any whitespace between tokens.
#include <c10/util/Exception.h>

#include <cctype>
#include <charconv>
#include <optional>

#include "dtensor/placement.h"

namespace dtensor {
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
