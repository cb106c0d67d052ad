// Row-split embedding tables against the ATen operators: uneven and empty vocabularies, global padding_idx, counts over
// a split batch.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

struct Table {
  std::vector<std::int64_t> mesh = any_mesh();
  std::int64_t rows = pick(1, 7), width = pick(0, 3);
  std::vector<std::int64_t> batch = any_sizes(0, 2);
  at::Tensor indices = at::randint(rows, batch, flip() ? at::kLong : at::kInt);
  // Per mesh axis: splits the table's rows, the batch, or nothing.
  std::vector<int> role = roles();
  std::vector<int> roles() const {
    std::vector<int> r(mesh.size());
    for (auto& x : r) x = static_cast<int>(pick(0, batch.empty() ? 1 : 2));
    return r;
  }
  Placements by_role(const Placement& rows_split, const Placement& batch_split) const {
    Placements p(mesh.size());
    for (std::size_t a = 0; a < p.size(); ++a)
      p[a] = role[a] == 1 ? rows_split : role[a] == 2 ? batch_split : Placement();
    return p;
  }
};

RC_GTEST_PROP(Embedding, ForwardEqualsAten, ()) {
  const Table t;
  auto weight = at::randn({t.rows, t.width}).to(any_float());
  if (flip() && t.width > 0) weight.select(0, 0).fill_(NAN);  // row 0 replaces rows of other ranks
  const auto out = t.by_role(flip() ? Partial() : Replicate(), Shard(0));
  check_case({"embedding",
              "",
              "embedding_vocab",
              {weight, t.indices, pick(-1, t.rows - 1), false, false},
              {t.by_role(Shard(0), Replicate()), t.by_role(Replicate(), Shard(0))},
              {out},
              t.mesh});
}

RC_GTEST_PROP(Embedding, BackwardEqualsAten, ()) {
  const Table t;
  auto sizes = t.batch;
  sizes.push_back(t.width);
  const auto grad = at::randn(sizes).to(any_float());
  const auto batch = t.by_role(Replicate(), Shard(0));
  const auto out = t.by_role(Shard(0), flip() ? Partial() : Replicate());
  check_case({"embedding_dense_backward",
              "",
              "embedding_backward_vocab",
              {grad, t.indices, t.rows, pick(-1, t.rows - 1), flip()},
              {batch, batch},
              {out},
              t.mesh});
}

TEST(Embedding, IndexOutOfRangeIsRefused) {
  const KernelCase full_tensor{"embedding",
                               "",
                               "embedding_vocab",
                               {at::ones({4, 2}), at::full({1}, 3), -1, false, false},
                               {{Shard(0)}, {Replicate()}},
                               {{Partial()}},
                               {2}};
  auto bad = full_tensor;
  bad.args[1].toTensor().fill_(3);
  EXPECT_NO_THROW(run_sharded(full_tensor));
  EXPECT_ANY_THROW({
    bad.args[1] = at::full({1}, 4);
    run_sharded(bad);
  });
}

}  // namespace
}  // namespace dtensor::testing
