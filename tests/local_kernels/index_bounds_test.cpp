// An index out of range raises one error on every rank that has the full index, for any local part. If the index is
// split, the other ranks receive the error of the rank that detects it.
#include "local_kernels/same_error.h"

namespace dtensor::test {
namespace {

struct Indexing {
  const char* name;
  Shape self, index;
  std::int64_t size;  // size of the indexed dimension
  bool from_end;      // negative indices are allowed
  std::function<at::Tensor(const at::Tensor& self, const at::Tensor& index)> run;
};

at::Tensor ones(const Shape& sizes) { return at::ones(sizes, at::kDouble); }

// Sizes are small, so that one of three ranks may have no elements.
std::vector<Indexing> indexings() {
  using T = const at::Tensor&;
  return {
      {"gather 0", {5, 4}, {3, 4}, 5, false, [](T x, T i) { return at::gather(x, 0, i); }},
      {"gather 1", {4, 5}, {4, 3}, 5, false, [](T x, T i) { return at::gather(x, 1, i); }},
      {"scatter",
       {5, 4},
       {3, 4},
       5,
       false,
       [](T x, T i) {
         return at::scatter(x, 0, i, ones({3, 4}));
       }},
      {"scatter of a value", {5, 4}, {3, 4}, 5, false, [](T x, T i) { return at::scatter(x, 0, i, 3); }},
      {"scatter_add",
       {5, 4},
       {3, 4},
       5,
       false,
       [](T x, T i) {
         return at::scatter_add(x, 0, i, ones({3, 4}));
       }},
      {"scatter_add_",
       {5, 4},
       {3, 4},
       5,
       false,
       [](T x, T i) {
         return x.clone().scatter_add_(0, i, ones({3, 4}));
       }},
      {"scatter_reduce",
       {5, 4},
       {3, 4},
       5,
       false,
       [](T x, T i) {
         return x.scatter_reduce(0, i, ones({3, 4}), "amax");
       }},
      {"index_select 0", {5, 4}, {7}, 5, false, [](T x, T i) { return at::index_select(x, 0, i); }},
      {"index_select 1", {4, 5}, {7}, 5, false, [](T x, T i) { return at::index_select(x, 1, i); }},
      {"index_add",
       {5, 4},
       {7},
       5,
       false,
       [](T x, T i) {
         return at::index_add(x, 0, i, ones({7, 4}));
       }},
      {"index_copy",
       {5, 4},
       {7},
       5,
       false,
       [](T x, T i) {
         return at::index_copy(x, 0, i, ones({7, 4}));
       }},
      {"index_fill", {5, 4}, {7}, 5, true, [](T x, T i) { return at::index_fill(x, 0, i, 3); }},
      {"index", {5, 4}, {7}, 5, true, [](T x, T i) { return at::index(x, {i}); }},
      {"index of the second",
       {4, 5},
       {7},
       5,
       true,
       [](T x, T i) {
         return at::index(x, {std::nullopt, i});
       }},
      {"index_put",
       {5, 4},
       {7},
       5,
       true,
       [](T x, T i) {
         return at::index_put(x, {i}, ones({7, 4}));
       }},
      {"index_put, added",
       {5, 4},
       {7},
       5,
       true,
       [](T x, T i) {
         return at::index_put(x, {i}, ones({7, 4}), true);
       }},
      {"take", {5, 1}, {7}, 5, true, [](T x, T i) { return at::take(x, i); }},
      {"put", {5, 1}, {7}, 5, true, [](T x, T i) { return at::put(x, i, ones({7})); }},
      {"embedding", {5, 4}, {7}, 5, false, [](T x, T i) { return at::embedding(x, i); }},
      {"nll_loss", {7, 5}, {7}, 5, false, [](T x, T i) { return at::nll_loss(x, i); }},
      {"nll_loss of each", {7, 5}, {7}, 5, false, [](T x, T i) { return at::nll_loss(x, i, {}, at::Reduction::None); }},
  };
}

at::Tensor index_of(const Indexing& kind, const std::vector<std::int64_t>& values, at::ScalarType type) {
  const auto n = c10::multiply_integers(kind.index);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(values[static_cast<std::size_t>(i) % values.size()]);
  return at::tensor(all, at::kLong).to(type).reshape(kind.index);
}

bool takes_int(const Indexing& kind) {
  const std::string name = kind.name;
  return name.starts_with("index_select") || name.starts_with("index_add") || name == "embedding";
}

void for_each_placement(const Indexing& kind, const std::function<void(Placement self, Placement index)>& run) {
  for (std::int64_t self = -1; self < 2; ++self) {
    for (std::int64_t index = -1; index < std::ssize(kind.index); ++index) {
      run(self < 0 ? Placement(Replicate()) : Placement(Shard(self)),
          index < 0 ? Placement(Replicate()) : Placement(Shard(index)));
    }
  }
}

std::vector<std::string> errors_with(const Indexing& kind, const at::Tensor& index, const Placement& self_placement,
                                     const std::optional<Placement>& index_placement) {
  return errors_of([&](const DeviceMesh& m) {
    const at::Tensor x = distribute_tensor(at::ones(kind.self, at::kDouble), m, {self_placement});
    kind.run(x, index_placement ? at::Tensor(distribute_tensor(index, m, {*index_placement})) : index);
  });
}

TEST(IndexBounds, AreReportedOnEveryRankThatHoldsTheFullIndex) {
  for (const auto& kind : indexings()) {
    const auto last = c10::multiply_integers(kind.index) - 1;
    for (const std::int64_t beyond : {kind.size, std::int64_t{-8}}) {
      for (const std::int64_t at : {std::int64_t{0}, last}) {
        at::Tensor index = index_of(kind, {0}, at::kLong);
        index.view({-1})[at] = beyond;
        for (const Placement& self : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
          for (const bool regular : {false, true}) {
            const auto errors =
                errors_with(kind, index, self, regular ? std::nullopt : std::optional<Placement>(Replicate()));
            for (const auto& error : errors) {
              EXPECT_NE(error, "no error") << kind.name << " of " << self.str() << ", " << beyond << " at " << at;
              EXPECT_EQ(error, errors[0]) << kind.name << " of " << self.str();
            }
          }
        }
      }
    }
  }
}

// Ranks with the invalid index raise; the layout of the operator determines which. Their error ends the other ranks.
TEST(IndexBounds, EndAllRanksWithTheReasonWhereTheIndexIsSplit) {
  for (const auto& kind : indexings()) {
    at::Tensor index = index_of(kind, {0}, at::kLong);
    index.view({-1})[1] = kind.size;
    std::vector<std::string> errors(3);
    const auto rank = [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {3});
      auto& mine = errors[static_cast<std::size_t>(world.rank())];
      const at::Tensor x = distribute_tensor(at::ones(kind.self, at::kDouble), mesh, {Shard(0)});
      const at::Tensor i = distribute_tensor(index, mesh, {Shard(0)});
      try {
        kind.run(x, i);
        world.barrier();
      } catch (const c10::Error& error) {
        mine = error.what_without_backtrace();
        throw std::runtime_error(mine);  // an exception without a backtrace
      } catch (const CommError& error) {
        mine = error.what();
        throw;
      }
    };
    EXPECT_ANY_THROW(run_local(3, rank)) << kind.name;
    const auto own = std::find_if(errors.begin(), errors.end(),
                                  [](const auto& e) { return e.find("failed: ") == std::string::npos; });
    ASSERT_NE(own, errors.end());
    const std::string reason = own->substr(0, own->find(" (in "));
    EXPECT_NE(reason, "") << kind.name;
    for (const auto& error : errors) EXPECT_NE(error.find(reason), std::string::npos) << kind.name << ": " << error;
  }
}

TEST(IndexBounds, IndicesInRangeEqualOneDevice) {
  for (const auto& kind : indexings()) {
    std::vector<std::int64_t> values = {0, kind.size - 1, 2};
    if (kind.from_end) values.insert(values.end(), {-1, -kind.size});
    const bool repeats = std::string(kind.name) == "index_copy" || std::string(kind.name) == "put";
    const at::Tensor x = at::arange(c10::multiply_integers(kind.self), at::kDouble).reshape(kind.self);
    for (const auto type : {at::kLong, at::kInt}) {
      if (type == at::kInt && !takes_int(kind)) continue;
      const at::Tensor index = index_of(kind, values, type), full = kind.run(x, index);
      for_each_placement(kind, [&](const Placement& self, const Placement& placement) {
        on_mesh({3}, [&](const DeviceMesh& m) {
          const at::Tensor got = kind.run(distribute_tensor(x, m, {self}), distribute_tensor(index, m, {placement}));
          if (!repeats) expect_close(got, full, kind.name);
        });
      });
    }
  }
}

// ignore_index of a loss may be out of range.
TEST(IndexBounds, IgnoredTargetsAreNotChecked) {
  const at::Tensor x = at::rand({7, 5}, at::kDouble), target = at::tensor({0, -100, 4, -100, 1, 2, 3}, at::kLong);
  for (const Placement& self : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    on_mesh({3}, [&](const DeviceMesh& m) {
      const at::Tensor loss =
          at::nll_loss(distribute_tensor(x, m, {self}), distribute_tensor(target, m, {Replicate()}));
      expect_close(loss, at::nll_loss(x, target), "nll_loss");
    });
  }
}

// A mask among the indices covers several dimensions.
TEST(IndexBounds, MasksBesideIndicesKeepTheirDimensions) {
  const at::Tensor x = at::arange(2 * 3 * 9, at::kDouble).reshape({2, 3, 9}), mask = at::eye(2, 3).to(at::kBool);
  const at::Tensor index = at::tensor({8, 7}, at::kLong), full = at::index(x, {mask, index});
  on_mesh({3}, [&](const DeviceMesh& m) {
    for (std::int64_t dim = 0; dim < 3; ++dim) {
      const at::Tensor placed = distribute_tensor(x, m, {Shard(dim)});
      expect_close(at::index(placed, {mask, index}), full, "index");
    }
  });
}

}  // namespace
}  // namespace dtensor::test
