// Writes to slices and entries of a sharded tensor, and reads of slices after the tensor has changed, move the rows
// whose rank changes and nothing else: bytes by a count of rows. Values and derivatives by random draws of slices.
#include <rapidcheck.h>
#include <torch/torch.h>

#include "spatial/operators.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kRowBytes = 2 * 5 * 8;  // of an image [1, 2, rows, 5]

std::int64_t owner(std::int64_t row, std::int64_t rows, std::int64_t ranks) {
  return row / ((rows + ranks - 1) / ranks);
}

// Rows of a slice that begins at `start` which `rank` receives: those of the slice, from the tensor, or the reverse.
std::int64_t received(std::int64_t rows, std::int64_t start, std::int64_t length, std::int64_t rank, std::int64_t ranks,
                      bool to_slice) {
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < length; ++j) {
    const auto in_tensor = owner(start + j, rows, ranks), in_slice = owner(j, length, ranks);
    count += in_tensor != in_slice && rank == (to_slice ? in_slice : in_tensor) ? 1 : 0;
  }
  return count;
}

struct Write {
  const char* name;
  std::function<void(const at::Tensor& x, const at::Tensor& rows)> run;  // `rows`: of the size of the slice
  // Rows that move to the slice, and back: (start, length) for a tensor of n rows.
  std::function<std::pair<std::int64_t, std::int64_t>(std::int64_t n)> slice;
  int to_slice, back;
};

std::vector<Write> writes() {
  const auto tail = [](std::int64_t n) { return std::pair(std::int64_t{1}, n - 1); };
  const auto inner = [](std::int64_t n) { return std::pair(std::int64_t{2}, n - 3); };
  using T = const at::Tensor&;
  return {{"x[1:] += 1", [](T x, T /*rows*/) { x.slice(2, 1).add_(1); }, tail, 1, 1},
          {"x[2:-1].copy_(rows)", [](T x, T rows) { x.slice(2, 2, -1).copy_(rows); }, inner, 1, 1},
          {"x[2:-1, :2] *= 2", [](T x, T /*rows*/) { x.slice(2, 2, -1).slice(1, 0, 2).mul_(2); }, inner, 1, 1},
          {"read after a write",
           [](T x, T /*rows*/) {
             const at::Tensor view = x.slice(2, 1);
             x.mul_(2);
             view.sin();
           },
           tail, 2, 0},
          {"slice_scatter", [](T x, T rows) { x.slice_scatter(rows, 2, 2, -1); }, inner, 0, 1},
          {"narrow_copy", [](T x, T /*rows*/) { x.narrow_copy(2, 1, x.size(2) - 1); }, tail, 1, 0}};
}

TEST(SliceWrites, BytesAreThoseOfRowsThatChangeTheirRank) {
  for (const auto& write : writes()) {
    for (const int ranks : {2, 3, 4}) {
      for (const std::int64_t rows : {5, 11, 12}) {
        on_mesh({ranks}, [&](const DeviceMesh& mesh) {
          const at::Tensor x = distribute_tensor(Draw(1).normal({1, 2, rows, 5}), mesh, {Shard(2)});
          const auto [start, length] = write.slice(rows);
          const at::Tensor values = distribute_tensor(Draw(2).normal({1, 2, length, 5}), mesh, {Shard(2)});
          std::int64_t bytes = 0;
          const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
          write.run(x, values);
          const auto me = mesh.coordinate()->at(0);
          const auto moved = [&](bool to_slice) { return received(rows, start, length, me, ranks, to_slice); };
          EXPECT_EQ(bytes, (write.to_slice * moved(true) + write.back * moved(false)) * kRowBytes)
              << write.name << " of " << rows << " rows on " << ranks << " ranks";
        });
      }
    }
  }
}

// Writes of an entry send nothing back: each rank has the row, and its owner stores it.
TEST(SliceWrites, EntriesAreSentOnce) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(Draw(1).normal({1, 2, 7, 5}), mesh, {Shard(2)});
    std::int64_t bytes = 0;
    const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
    x.select(2, 4).fill_(3);
    EXPECT_LE(bytes, kRowBytes);
    EXPECT_TRUE(at::equal(DTensor(x).full_tensor().select(2, 4), at::full({1, 2, 5}, 3., at::kDouble)));
  });
}

// Views of a tensor by up to three steps of indexing, and an operation on each.
struct Indexed {
  struct Step {
    int kind;  // 0: slice, 1: select, 2: transpose
    std::int64_t dim, start, end, step;
  };
  std::vector<Step> steps;
  int write;
  double number;

  at::Tensor view_of(at::Tensor t) const {
    for (const Step& s : steps) {
      if (s.kind == 2) {
        t = t.transpose(s.dim, 0);
      } else {
        t = s.kind == 1 ? t.select(s.dim, s.start) : t.slice(s.dim, s.start, s.end, s.step);
      }
    }
    return t;
  }
};

Indexed drawn_index(Draw& draw, Shape sizes) {
  Indexed index{{}, static_cast<int>(draw.integer(0, 3)), static_cast<double>(draw.integer(2, 5))};
  for (auto count = draw.integer(1, 3); count > 0 && !sizes.empty(); --count) {
    const auto dim = draw.integer(0, std::ssize(sizes) - 1), n = sizes[static_cast<std::size_t>(dim)];
    const auto kind = static_cast<int>(draw.integer(0, 9));
    if (n == 0) break;
    const auto start = draw.integer(0, n - 1), end = draw.integer(start, n), step = draw.integer(1, 3);
    index.steps.push_back({kind < 7 ? 0 : kind < 9 ? 1 : 2, dim, start, end, step});
    sizes = Indexed{{index.steps.back()}, 0, 0}.view_of(at::empty(sizes)).sizes().vec();
  }
  return index;
}

// The results of writes: a leaf's copy is written through the views in turn, read through a view taken before, and
// derived twice.
Tensors written(const at::Tensor& leaf, const std::vector<Indexed>& all,
                const std::function<at::Tensor(at::Tensor)>& put) {
  const at::Tensor x = leaf * 1;
  const at::Tensor early = all[0].view_of(x);
  for (const Indexed& index : all) {
    const at::Tensor view = index.view_of(x);
    const at::Tensor values = put(Draw(7).normal(view.sizes().vec()));
    if (index.write == 0) view.add_(index.number);
    if (index.write == 1) view.copy_(values);
    if (index.write == 2) view.mul_(values);
    if (index.write == 3) view.fill_(index.number);
  }
  const at::Tensor sum = early.square().sum() + x.pow(3).sum();
  const at::Tensor first = torch::autograd::grad({sum}, {leaf}, {}, true, true)[0];
  const at::Tensor second = torch::autograd::grad({first.square().sum()}, {leaf}, {}, true, false, true)[0];
  return {x.detach(), early.detach(), first.detach(), second.defined() ? second : at::zeros_like(leaf)};
}

Placement drawn_placement(Draw& draw, std::int64_t dims) {
  return draw.integer(0, 3) == 0 ? Placement(Replicate()) : Placement(Shard(draw.integer(0, dims - 1)));
}

TEST(SliceWrites, EqualThoseOfOneDevice) {
  EXPECT_TRUE(rc::check("writes to slices equal those of one device", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const Shape sizes = draw.sizes(draw.integer(1, 4), 1, 7);
    const std::vector<Shape> shapes{{2}, {3}, {2, 2}};
    const Shape shape = shapes[static_cast<std::size_t>(draw.integer(0, 2))];
    const at::Tensor full = draw.normal(sizes);
    std::vector<Indexed> all;
    for (auto count = draw.integer(1, 3); count > 0; --count) all.push_back(drawn_index(draw, sizes));
    Placements placements;
    for (std::size_t a = 0; a < shape.size(); ++a) placements.push_back(drawn_placement(draw, std::ssize(sizes)));
    const auto expected = written(full.clone().requires_grad_(), all, [](at::Tensor t) { return t; });
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      const Placements replicated(shape.size(), Replicate());
      const at::Tensor leaf = distribute_tensor(full, mesh, placements).requires_grad_();
      const auto got = written(leaf, all, [&](at::Tensor t) { return distribute_tensor(t, mesh, replicated); });
      for (std::size_t i = 0; i < got.size(); ++i) {
        expect_close(DTensor(got[i]).full_tensor(), expected[i],
                     c10::str(to_string(placements), " ", full.sizes(), " result ", i));
      }
    });
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

}  // namespace
}  // namespace dtensor::test
