// The order of products on a GPU, run on the host: equal to a recursive reference, and to the tiles of the CPU.
#include "support/leaf_products.h"

#include "bit_identical/bits.h"
#include "ops/local_kernels/bit_identical/tree.h"

namespace dtensor::test {
namespace {

// The reference: chains of single numbers, and the recursive tree.
template <class S>
struct RecursiveTree {
  S leaf(std::int64_t i) const {
    S sum = 0;
    for (std::int64_t k = first_of(i); k < first_of(i + 1); ++k) {
      if constexpr (std::is_same_v<S, float>) {
        sum = std::fmaf(row[k], column[k], sum);
      } else {
        const volatile S product = row[k] * column[k];
        sum += product;
      }
    }
    return sum;
  }
  S node(int level, std::int64_t i) const {
    if (level == 0) return leaf(i);
    const bool right = ((2 * i + 1) << (level - 1)) < count;
    return right ? node(level - 1, 2 * i) + node(level - 1, 2 * i + 1) : node(level - 1, 2 * i);
  }
  // The largest nodes whose leaves are all in [begin, end).
  void nodes_in(int level, std::int64_t i, std::int64_t begin, std::int64_t end, std::vector<S>& found) const {
    const std::int64_t first = i << level, last = std::min((i + 1) << level, count);
    if (first >= end || last <= begin) return;
    if (first >= begin && last <= end) return found.push_back(node(level, i));
    nodes_in(level - 1, 2 * i, begin, end, found);
    nodes_in(level - 1, 2 * i + 1, begin, end, found);
  }
  std::int64_t first_of(std::int64_t i) const { return std::min(i * block, size); }

  const S *row, *column;
  std::int64_t size, block, count;
};

struct Pieces {
  std::int64_t block, count;                              // of all leaves
  std::vector<std::pair<std::int64_t, std::int64_t>> of;  // leaves of each piece
};

Pieces draw_pieces(Draw& draw, std::int64_t size) {
  Pieces p{draw.integer(1, 40), 0, {}};
  p.count = (size + p.block - 1) / p.block;
  std::vector<std::int64_t> ends{0, p.count};
  for (auto i = draw.integer(0, 3); i > 0; --i) ends.push_back(draw.integer(0, p.count));
  std::sort(ends.begin(), ends.end());
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) p.of.emplace_back(ends[i], ends[i + 1]);
  return p;
}

struct Schedule {
  std::vector<std::int64_t> lengths, merges;
};

Schedule schedule_of(const Pieces& p, std::size_t piece, std::int64_t size) {
  Schedule s;
  bit_identical::NodeStack nodes(p.count);
  for (auto i = p.of[piece].first; i < p.of[piece].second; ++i) {
    nodes.push({0, i});
    s.lengths.push_back(std::min(p.block, size - i * p.block)), s.merges.push_back(0);
    while (nodes.merge()) ++s.merges.back();
  }
  return s;
}

// A stack of matrices with any strides.
at::Tensor draw_matrices(Draw& draw, std::int64_t batch, std::int64_t rows, std::int64_t columns, at::ScalarType type) {
  switch (draw.integer(0, 3)) {
    case 0:
      return draw.normal({batch, columns, rows}).to(type).transpose(1, 2);
    case 1:
      return draw.normal({batch, rows + 3, columns + 2}).to(type).narrow(1, 1, rows).narrow(2, 2, columns);
    case 2:
      return draw.normal({batch, 1, columns}).to(type).expand({batch, rows, columns});
    default:
      return draw.normal({batch, rows, columns}).to(type);
  }
}

template <class S>
at::Tensor recursive_nodes(const at::Tensor& a, const at::Tensor& b, const Pieces& p, std::size_t piece) {
  constexpr auto type = c10::CppTypeToScalarType<S>::value;
  const auto left = a.to(type).contiguous(), right = b.to(type).transpose(1, 2).contiguous();
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < a.size(0) * a.size(1) * b.size(2); ++i) {
    const auto row = i / b.size(2), column = i / (a.size(1) * b.size(2)) * b.size(2) + i % b.size(2);
    const RecursiveTree<S> tree{left.template const_data_ptr<S>() + row * a.size(2),
                                right.template const_data_ptr<S>() + column * a.size(2), a.size(2), p.block, p.count};
    std::vector<S> nodes;
    if (p.count > 0) tree.nodes_in(40, 0, p.of[piece].first, p.of[piece].second, nodes);
    all.push_back(at::tensor(nodes, type));
  }
  return at::stack(all, 1).view({all[0].size(0), a.size(0), a.size(1), b.size(2)});
}

struct Products {
  at::Tensor by_threads, of_cpu, recursive;
  std::string what;
};

void for_each_draw(at::ScalarType type, const std::function<void(const Products&)>& check) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtensor::multiply_leaves", "")
                             .typed<decltype(multiply_by_threads)>();
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Draw draw(seed);
    const auto batch = draw.integer(1, 2), m = draw.integer(1, 70), n = draw.integer(1, 70), k = draw.integer(0, 200);
    const Pieces p = draw_pieces(draw, k);
    const at::Tensor a = draw_matrices(draw, batch, m, k, type), b = draw_matrices(draw, batch, k, n, type);
    for (std::size_t i = 0; i < p.of.size(); ++i) {
      const Schedule s = schedule_of(p, i, k);
      const auto begin = std::min(p.of[i].first * p.block, k), length = c10::sum_integers(s.lengths);
      const at::Tensor own_a = a.narrow(2, begin, length), own_b = b.narrow(1, begin, length);
      const auto recursive =
          type == at::kDouble ? recursive_nodes<double>(a, b, p, i) : recursive_nodes<float>(a, b, p, i);
      check({multiply_by_threads(own_a, own_b, s.lengths, s.merges), op.call(own_a, own_b, s.lengths, s.merges),
             recursive, c10::str(type, " seed ", seed, " piece ", i)});
    }
  }
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST(LeafProducts, ThreadsHaveTheBitsOfARecursiveTree) {
  for (const auto type : kTypes) {
    for_each_draw(type, [](const Products& p) { EXPECT_TRUE(same_bits(p.by_threads, p.recursive)) << p.what; });
  }
}

TEST(LeafProducts, ThreadsHaveTheBitsOfTheCpu) {
  for_each_draw(at::kDouble, [](const Products& p) { EXPECT_TRUE(same_bits(p.by_threads, p.of_cpu)) << p.what; });
  if (!cpu_adds_in_order()) GTEST_SKIP() << "another order of brgemm on this processor";
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for_each_draw(type, [](const Products& p) { EXPECT_TRUE(same_bits(p.by_threads, p.of_cpu)) << p.what; });
  }
}

// Many leaves, of which the sums of a level wait for their right sibling.
TEST(LeafProducts, DeepTreesFitTheStackOfAThread) {
  const std::int64_t count = (1 << 14) - 1;
  const at::Tensor a = at::randn({1, 5, count}), b = at::randn({1, count, 7});
  const Pieces p{1, count, {{0, count}}};
  const Schedule s = schedule_of(p, 0, count);
  EXPECT_TRUE(same_bits(multiply_by_threads(a, b, s.lengths, s.merges), recursive_nodes<float>(a, b, p, 0)));
}

}  // namespace
}  // namespace dtensor::test
