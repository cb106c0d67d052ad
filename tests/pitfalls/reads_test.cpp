// Scalar reads, random numbers and the decision cache.
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

TEST(Reads, ScalarReadsAreGlobalOnEveryRank) {
  for_all("item, equal, allclose, is_nonzero", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(Shape(static_cast<std::size_t>(draw.integer(0, 3)), 1));
    const auto d = place_unequal(draw, x, mesh, any_placements(draw, mesh, x.dim()));
    const auto what = d.spec_str();
    const auto near = [](double a, double b) { return std::abs(a - b) < 1e-12; };
    TORCH_CHECK(near(d.item<double>(), x.item<double>()), what);
    TORCH_CHECK(d.mul(1024).to(at::kLong).item<std::int64_t>() == x.mul(1024).to(at::kLong).item<std::int64_t>() ||
                    near(std::abs(x.item<double>() * 1024 - std::round(x.item<double>() * 1024)), 0),
                what);
    TORCH_CHECK(d.is_nonzero() && d.gt(0).item<bool>() == x.gt(0).item<bool>(), what);
    const auto y = draw.normal(draw.sizes(2, 1, 9));
    const auto a = place_unequal(draw, y, mesh, any_placements(draw, mesh, 2)),
               b = place_unequal(draw, y, mesh, any_placements(draw, mesh, 2));
    auto other = y.clone();
    other.view(-1)[-1].add_(1);
    const auto c = distribute_tensor(other, mesh, any_placements(draw, mesh, 2, false));
    const auto pair = a.spec_str() + " " + b.spec_str() + " " + c.spec_str();
    TORCH_CHECK(at::allclose(a, b) && !at::allclose(a, c) && !at::equal(a, c), pair);
    TORCH_CHECK(at::equal(c, c.redistribute(all_axes(mesh, Replicate()))), pair);
    TORCH_CHECK(near(at::linalg_vector_norm(a).item<double>(), at::linalg_vector_norm(y).item<double>()), pair);
    TORCH_CHECK(a.gt(100).any().item<bool>() == false && c.lt(100).all().item<bool>(), pair);
  });
}

using Draws = std::function<at::Tensor(const at::Tensor&)>;
const std::vector<std::pair<const char*, Draws>>& random_operators() {
  static const std::vector<std::pair<const char*, Draws>> all{
      {"normal_", [](at::Tensor t) { return t.normal_(1, 2); }},
      {"uniform_", [](at::Tensor t) { return t.uniform_(-1, 1); }},
      {"bernoulli", [](at::Tensor t) { return at::bernoulli(t.add_(0.5)); }},
      {"randint_like", [](const at::Tensor& t) { return at::randint_like(t, 9); }},
      {"dropout", [](const at::Tensor& t) { return at::dropout(t + 1, 0.4, true); }},
      {"exponential_ of a transpose", [](const at::Tensor& t) {
         auto y = t.clone();
         y.transpose(0, -1).exponential_(2);
         return y;
       }}};
  return all;
}

TEST(Reads, RandomValuesDependOnSeedAndGlobalIndexOnly) {
  EXPECT_TRUE(rc::check("random values", [] {
    Draw draw(*rc::gen::inRange<std::uint64_t>(0, 1u << 20));
    const auto sizes = draw.sizes(draw.integer(1, 3), 0, 9);
    const auto& [name, run] = random_operators()[static_cast<std::size_t>(draw.integer(0, 5))];
    std::vector<at::Tensor> expected;
    const auto twice = [&, &run = run](const DeviceMesh& mesh, const Placements& first, const Placements& second) {
      manual_seed(mesh, 5);
      std::vector<at::Tensor> results{run(zeros(sizes, mesh, first, at::kDouble)),
                                      run(zeros(sizes, mesh, second, at::kDouble))};
      for (auto& t : results) t = full_of(t);
      return results;
    };
    on_mesh({1}, [&](const DeviceMesh& mesh) { expected = twice(mesh, {Replicate()}, {Replicate()}); });
    const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1000));
    on_mesh(mesh_shapes()[static_cast<std::size_t>(draw.integer(1, 5))], [&, name = name](const DeviceMesh& mesh) {
      Draw mine(seed);
      const auto first = any_placements(mine, mesh, std::ssize(sizes), false);
      const auto second = any_placements(mine, mesh, std::ssize(sizes), false);
      const auto results = twice(mesh, first, second);
      for (int i : {0, 1}) {
        const auto what = c10::str(name, " ", to_string(first), " then ", to_string(second));
        require_same(results[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)], what);
      }
    });
  }));
}

// Calls that differ in one argument only.
Function any_call(Draw& draw, const at::Tensor& x) {
  const auto n = draw.integer(0, 1), dim = draw.integer(0, x.dim() - 1);
  const bool flag = draw.coin();
  const double scalar = 0.5 + static_cast<double>(n);
  const auto dtype = flag ? at::kFloat : at::kDouble;
  switch (draw.integer(0, 19)) {
    case 0:
      return [=](const auto& t) { return at::add(t[0], t[0], scalar); };
    case 1:
      return [=](const auto& t) { return t[0] * scalar; };
    case 2:
      return [=](const auto& t) { return t[0].sum(at::IntArrayRef{dim}, flag); };
    case 3:
      return [=](const auto& t) { return t[0].sum(dtype); };
    case 4:
      return [=](const auto& t) { return t[0].softmax(dim, dtype); };
    case 5:
      return [=](const auto& t) { return t[0].clamp(-scalar, scalar); };
    case 6:
      return [=](const auto& t) { return at::linalg_vector_norm(t[0], 1 + n); };
    case 7:
      return [=](const auto& t) { return t[0].narrow(dim, n, 2); };
    case 8:
      return [=](const auto& t) { return t[0].roll(1 + n, dim); };
    case 9:
      return [=](const auto& t) { return t[0].to(dtype); };
    case 10:
      return [=](const auto& t) { return at::leaky_relu(t[0], scalar); };
    case 11:
      return [=](const auto& t) { return at::elu(t[0], scalar, scalar); };
    case 12:
      return [=](const auto& t) { return t[0].var(at::IntArrayRef{dim}, at::Scalar(n), flag); };
    case 13:
      return [=](const auto& t) { return t[0].masked_fill(t[0].gt(0), scalar); };
    case 14:
      return [=](const auto& t) { return at::full_like(t[0], scalar); };
    case 15:
      return [=](const auto& t) { return t[0].cumsum(dim, dtype); };
    case 16:
      return [=](const auto& t) { return at::quantile(t[0], scalar / 2, dim, flag); };
    case 17:
      return [=](const auto& t) { return std::get<0>(t[0].topk(1 + n, dim, flag)); };
    case 18:
      return [=](const auto& t) { return at::where(t[0].gt(0), t[0], scalar); };
    default:
      return [=](const auto& t) { return t[0].index_fill(dim, at::tensor({n}), scalar); };
  }
}

// Calls in any order, often repeated with one changed argument: values are current, and no decision is made twice.
TEST(Reads, NothingIsStaleOrDecidedTwice) {
  for_all("a sequence of calls", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(draw.sizes(2, 3, 5));
    const auto d = distribute_tensor(x, mesh, any_placements(draw, mesh, 2, false));
    std::vector<Function> calls;
    for (int i = 0; i < 12; ++i) calls.push_back(any_call(draw, x));
    CacheStats before;
    for (const int pass : {0, 1}) {
      for (std::size_t i = 0; i < calls.size(); ++i)
        require_close(calls[i]({d}), calls[i]({x}), c10::str("call ", i, " ", d.spec_str()), 1e-6);
      if (pass == 0) before = cache_stats();
    }
    TORCH_CHECK(cache_stats().misses == before.misses, "decided again: ", cache_stats().misses - before.misses);
  });
}

TEST(Reads, ListOperatorsHitTheCache) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    std::vector<at::Tensor> list, rows{distribute_tensor(at::tensor({0, 2}), mesh, all_axes(mesh, Replicate()))};
    for (const auto& p : {Shard(0), Shard(1), Replicate()})
      list.push_back(distribute_tensor(at::ones({4, 4}), mesh, all_axes(mesh, p)));
    const auto all = [&] {
      at::stack(list);
      at::cat(list, 1);
      at::block_diag(list);
      at::einsum("ij,jk->ik", {list[0], list[1]});
      list[0].index({rows[0]});
      list[0].index_put({rows[0]}, list[2].narrow(0, 0, 2));
      at::_foreach_add(list, list, 2);
      at::_foreach_norm(list);
      at::_foreach_mul_(list, 0.5);
      list[0].split(2);
      list[0].unbind();
    };
    all();
    const auto misses = cache_stats().misses;
    all();
    EXPECT_EQ(cache_stats().misses, misses);
  });
}

}  // namespace
}  // namespace dtensor::test
