// Norms and sums in a BitIdentical scope, for sizes that are no multiple of a subtree.
#include <cmath>

#include "bit_identical/bits.h"
#include "support/draws.h"

namespace dtensor::test {
namespace {

// The definition: level by level, neighbors are added, and a number without a neighbor passes on.
template <class T>
T tree_of(std::vector<T> numbers) {
  while (numbers.size() > 1) {
    std::vector<T> parents;
    for (std::size_t i = 0; i < numbers.size(); i += 2) {
      parents.push_back(i + 1 < numbers.size() ? numbers[i] + numbers[i + 1] : numbers[i]);
    }
    numbers = std::move(parents);
  }
  return numbers[0];
}

at::Tensor tree_of_columns(const at::Tensor& rows) {
  const at::Tensor sums = at::empty({rows.size(1)}, rows.options());
  for (std::int64_t c = 0; c < rows.size(1); ++c) {
    const at::Tensor column = rows.select(1, c).contiguous();
    const auto* begin = column.const_data_ptr<float>();
    sums[c] = tree_of(std::vector<float>(begin, begin + column.numel()));
  }
  return sums;
}

double tree_norm(const at::Tensor& t) {
  std::vector<double> squares;
  const at::Tensor wide = t.to(at::kDouble).reshape({-1}).contiguous();
  for (std::int64_t i = 0; i < wide.numel(); ++i) squares.push_back(std::pow(wide.const_data_ptr<double>()[i], 2));
  return std::sqrt(tree_of(squares));
}

Tensors sums_of(const Tensors& in) { return {in[0].sum(0), in[0].sum(), at::_foreach_norm(in, 2, at::kDouble)[0]}; }

void sums_are_trees() {
  Draw draw(*rc::gen::inRange<std::uint64_t>(0, 1u << 30));
  const auto columns = draw.integer(0, 3) == 0 ? draw.integer(500, 1100) : draw.integer(1, 5);
  const at::Tensor x = draw.normal({draw.integer(1, columns > 5 ? 80 : 5000), columns}, at::kFloat);
  const Tensors expected{tree_of_columns(x), tree_of_columns(x.reshape({-1, 1}))[0],
                         at::scalar_tensor(tree_norm(x), at::kDouble)};
  require_same_bits(on_one_device(sums_of, {x}, 2), expected, "sums on one device");
  on_mesh({*rc::gen::inRange(2, 4)}, [&, dim = draw.integer(0, 1)](const DeviceMesh& mesh) {
    require_same_bits(run_placed(mesh, sums_of, {x}, {{Shard(dim)}}), expected, "sums on " + mesh.str());
  });
}

TEST(BitIdenticalLists, SumsAreTreesOverGlobalIndices) { check_property("sums are trees", sums_are_trees, 30); }

}  // namespace
}  // namespace dtensor::test
