// Uneven all-to-all, sorting by bin, and permutation and combination of rows: values, gradients and second derivatives.
#include "moe/dispatch/permute.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "internal/autograd_node.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Splits = std::vector<std::int64_t>;

TEST(AllToAll, UnevenSplitsOfTwoRanks) {
  for (const auto dtype : {at::kLong, at::kInt, at::kByte, at::kFloat}) {
    run_local(2, [&](Communicator world) {
      const bool first = world.rank() == 0;
      const auto mine = first ? at::arange(0, 5, dtype) : at::arange(10, 16, dtype);
      const Splits send = first ? Splits{2, 3} : Splits{3, 3}, take = first ? Splits{2, 3} : Splits{3, 3};
      const auto wanted = first ? at::tensor({0, 1, 10, 11, 12}, dtype) : at::tensor({2, 3, 4, 13, 14, 15}, dtype);
      EXPECT_TRUE(at::equal(all_to_all(mine, send, world), wanted));
      EXPECT_TRUE(at::equal(all_to_all(mine, take, send, world), wanted));
    });
  }
}

// Indexed as splits[from][to].
std::vector<Splits> random_splits(Draw& draw, int ranks) {
  std::vector<Splits> splits(ranks, Splits(ranks));
  for (auto& row : splits) {
    for (auto& size : row) size = draw.coin() ? draw.integer(0, 4) : 0;
  }
  return splits;
}

// Rows of rank `me` after the exchange of `parts[from]`.
at::Tensor exchanged(const std::vector<at::Tensor>& parts, const std::vector<Splits>& splits, int me) {
  std::vector<at::Tensor> pieces;
  for (std::size_t from = 0; from < parts.size(); ++from)
    pieces.push_back(parts[from].split_with_sizes(splits[from])[me]);
  return at::cat(pieces);
}

RC_GTEST_PROP(AllToAll, AnySplitsWithGradients, (const std::uint32_t seed)) {
  Draw draw(seed);
  const int ranks = static_cast<int>(draw.integer(1, 4));
  const auto splits = random_splits(draw, ranks);
  std::vector<at::Tensor> parts, cotangents;
  for (const auto& row : splits)
    parts.push_back(draw.normal({std::accumulate(row.begin(), row.end(), std::int64_t{0}), 3}));
  for (int r = 0; r < ranks; ++r) cotangents.push_back(draw.normal(exchanged(parts, splits, r).sizes().vec()));
  std::vector<at::Tensor> gradients(ranks);
  run_local(ranks, [&](Communicator world) {
    const int me = world.rank();
    auto x = parts[me].clone().requires_grad_();
    const auto y = all_to_all(x, splits[me], world);
    EXPECT_TRUE(at::equal(y, exchanged(parts, splits, me)));
    // sum of c * y^2: the gradient and its gradient both cross ranks.
    const auto grad = torch::autograd::grad({(cotangents[me] * y * y).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    (grad.sum() * 0.5).backward();
    gradients[me] = x.grad();
  });
  std::vector<Splits> back(ranks, Splits(ranks));
  for (int i = 0; i < ranks; ++i) {
    for (int j = 0; j < ranks; ++j) back[i][j] = splits[j][i];
  }
  for (int r = 0; r < ranks; ++r) EXPECT_TRUE(at::allclose(gradients[r], exchanged(cotangents, back, r)));
}

// A node that returns an undefined gradient.
struct NoGradient final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {at::Tensor()}; }
};

at::Tensor without_gradient_on_rank_1(const at::Tensor& y, const Communicator& world) {
  if (world.rank() != 1) return y;
  auto result = y.detach().clone();
  auto node = make_node<NoGradient>();
  node->set_next_edges(torch::autograd::collect_next_edges(y));
  torch::autograd::set_history(result, node);
  return result;
}

// Rank 1 continues with another call; the error of rank 0, which waits for it, names a possible cause.
TEST(AllToAll, UnusedOutputOnOneRankIsAnErrorWithReason) {
  run_local(2, [](Communicator world) {
    std::string error;
    try {
      const auto x = at::ones({2, 3}).requires_grad_();
      const auto y = all_to_all(x, {1, 1}, {1, 1}, world);
      (world.rank() == 0 ? y : x).sum().backward();
      world.barrier();
    } catch (const CommError& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("ranks disagree"), std::string::npos) << error;
    if (world.rank() > 0) return;
    EXPECT_NE(error.find("the loss of each rank must depend on what all_to_all returned"), std::string::npos) << error;
  });
}

TEST(RowCounts, UndefinedGradientOnOneRankCountsAsZeros) {
  run_local(2, [](Communicator world) {
    const Splits two{2, 2};
    const auto check = [&](const char* what, const auto& forward, double own, double other) {
      auto x = at::ones({what[0] == 'g' ? 2 : 4, 1}).requires_grad_();
      without_gradient_on_rank_1(forward(x), world).sum().backward();
      const auto sums = x.grad().sum(1);
      EXPECT_EQ(sums[0].item<double>(), own) << what << " on rank " << world.rank();
      EXPECT_EQ(sums[-1].item<double>(), other) << what << " on rank " << world.rank();
    };
    check(
        "all_to_all", [&](const at::Tensor& x) { return all_to_all(x, two, two, world); }, 1, 0);
    check(
        "gather", [&](const at::Tensor& x) { return all_gather_rows(x, two, world); }, 1, 1);
    check(
        "sum", [&](const at::Tensor& x) { return reduce_scatter_rows(x, two, world); }, 1, 0);
  });
}

TEST(AllToAll, MismatchedSplitsAreAnErrorOnEveryRank) {
  EXPECT_THROW(run_local(2,
                         [](Communicator world) {
                           all_to_all(at::zeros({2}), {1, 2}, {1, 1}, world);
                         }),
               std::exception);
  EXPECT_THROW(run_local(2,
                         [](Communicator world) {
                           all_to_all(at::zeros({3}), {1, 1}, {1, 1}, world);
                         }),
               std::exception);
}

RC_GTEST_PROP(RowCounts, GatherAndReduceScatterAreAdjoint, (const std::uint32_t seed)) {
  Draw draw(seed);
  const int ranks = static_cast<int>(draw.integer(1, 4));
  Splits rows(ranks);
  for (auto& r : rows) r = draw.integer(0, 3);
  std::vector<at::Tensor> parts, cotangents;
  for (int r = 0; r < ranks; ++r) parts.push_back(draw.normal({rows[r], 2}));
  const auto all = at::cat(parts);
  for (int r = 0; r < ranks; ++r) cotangents.push_back(draw.normal(all.sizes().vec()));
  run_local(ranks, [&](Communicator world) {
    const int me = world.rank();
    auto x = parts[me].clone().requires_grad_();
    const auto y = all_gather_rows(x, rows, world);
    EXPECT_TRUE(at::equal(y, all));
    (y * cotangents[me]).sum().backward();
    const auto wanted = at::stack(cotangents).sum(0).split_with_sizes(rows)[me];
    EXPECT_TRUE(at::allclose(x.grad(), wanted));
    EXPECT_TRUE(at::allclose(reduce_scatter_rows(cotangents[me], rows, world), wanted));
  });
}

RC_GTEST_PROP(SortByBin, IsStableAndDropsIdsWithoutBin, (const std::vector<std::uint8_t>& values)) {
  auto ids = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  for (std::size_t i = 0; i < values.size(); ++i) ids[static_cast<std::int64_t>(i)] = values[i] % 7;
  const auto sorted = sort_by_bin(ids, 5);
  const auto kept = (ids < 5).sum().item<std::int64_t>();
  const auto order = std::get<1>(at::sort(ids, /*stable=*/true, 0, false)).narrow(0, 0, kept);
  EXPECT_TRUE(at::equal(sorted.order, order));
  EXPECT_TRUE(at::equal(sorted.counts, at::bincount(ids, {}, 7).narrow(0, 0, 5)));
  EXPECT_TRUE(at::equal(sorted.position.index_select(0, order), at::arange(kept)));
  EXPECT_TRUE(at::equal((sorted.position < 0), ids >= 5));
  EXPECT_TRUE(at::equal(count_bins(ids, 5), sorted.counts));
}

// A random routing of tokens x choices, with some entries dropped.
at::Tensor random_position(Draw& draw, std::int64_t& kept) {
  const auto tokens = draw.integer(0, 6), choices = draw.integer(1, 3), bins = draw.integer(1, 4);
  const auto sorted = sort_by_bin(draw.integers({tokens * choices}, bins + 1), bins);
  kept = sorted.order.numel();
  return sorted.position.view({tokens, choices});
}

at::Tensor dense_map(const at::Tensor& position, std::int64_t kept) {  // [tokens, choices, kept]
  return at::one_hot(at::where(position < 0, kept, position), kept + 1).narrow(2, 0, kept).to(at::kDouble);
}

RC_GTEST_PROP(UnpermuteTokens, EqualsAMatrixProductWithGradients, (const std::uint32_t seed)) {
  Draw draw(seed);
  std::int64_t kept = 0;
  const auto position = random_position(draw, kept);
  const auto map = dense_map(position, kept);
  const auto x = draw.normal({position.size(0), 3}), w = draw.normal(position.sizes().vec());
  const auto cotangent = draw.normal({position.size(0), 3});
  const auto gradients = [&](const auto& forward) {
    auto a = x.clone().requires_grad_(), b = w.clone().requires_grad_();
    const auto y = forward(a, b);
    const auto first = torch::autograd::grad({(y * y * cotangent).sum()}, {a, b}, {}, true, /*create_graph=*/true);
    const auto second =
        torch::autograd::grad({first[0].sum() + (first[1] * first[1]).sum()}, {a, b}, {}, {}, false, true);
    return std::vector<at::Tensor>{y.detach(), first[0].detach(), first[1].detach(), second[0], second[1]};
  };
  const auto ours = gradients([&](const at::Tensor& a, const at::Tensor& b) {
    return unpermute_tokens(permute_tokens(a, position, kept).sin(), position, b);
  });
  const auto regular = gradients([&](const at::Tensor& a, const at::Tensor& b) {
    const auto rows = at::einsum("tjk,td->kd", {map, a}).sin();
    return at::einsum("tjk,tj,kd->td", {map, b, rows});
  });
  for (std::size_t i = 0; i < ours.size(); ++i) expect_close(ours[i], regular[i], c10::str("result ", i));
  // Without create_graph, the explicit backward formula runs.
  auto rows = draw.normal({kept, 3}).requires_grad_(), weight = w.clone().requires_grad_();
  (unpermute_tokens(rows, position, weight) * cotangent).sum().backward();
  expect_close(rows.grad(), at::einsum("tjk,tj,td->kd", {map, w, cotangent}), "rows");
  expect_close(weight.grad(), at::einsum("tjk,kd,td->tj", {map, rows.detach(), cotangent}), "weights");
}

TEST(UnpermuteTokens, SumsSixteenBitRowsInFloat) {
  const auto rows = at::tensor({256.0, 1.0, 1.0}).view({3, 1}).to(at::kBFloat16);
  const auto position = at::tensor({0, 1, 2}, at::kLong).view({1, 3});
  EXPECT_EQ(unpermute_tokens(rows, position).item<double>(), 258.0);  // 256 + 1 is 256 in bfloat16
}

RC_GTEST_PROP(GatherBlocks, IsAPermutationOfRowsWithGradient, (const std::uint32_t seed)) {
  Draw draw(seed);
  Splits sizes(draw.integer(1, 5));
  for (auto& s : sizes) s = draw.integer(0, 3);
  Splits order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  auto x = draw.normal({std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), 2}).requires_grad_();
  const auto rows = at::arange(x.size(0)).split_with_sizes(sizes);
  std::vector<at::Tensor> index;
  for (const auto block : order) index.push_back(rows[block]);
  const auto y = gather_blocks(x, sizes, order);
  EXPECT_TRUE(at::equal(y, x.index_select(0, at::cat(index))));
  const auto cotangent = draw.normal(x.sizes().vec());
  (y * cotangent).sum().backward();
  EXPECT_TRUE(at::equal(x.grad().index_select(0, at::cat(index)), cotangent));
}

}  // namespace
}  // namespace dtensor::test
