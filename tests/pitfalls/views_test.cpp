// Views, reshapes and in-place view operators over all small shapes and placements.
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

// All sizes of n elements with up to three dimensions, and some with dimensions of size 1.
std::vector<Shape> shapes_of(std::int64_t n) {
  std::set<Shape> shapes{{n}, {1, n}, {n, 1}};
  for (std::int64_t a = 2; a < n; ++a) {
    if (n % a != 0) continue;
    shapes.insert({{a, n / a}, {a, 1, n / a}});
    for (std::int64_t b = 2; b < n / a; ++b) {
      if (n / a % b == 0) shapes.insert({a, b, n / a / b});
    }
  }
  return {shapes.begin(), shapes.end()};
}

struct Fuzz {
  int views = 0, wrong = 0, refused = 0;
  std::string first;
};

// An error must name the dimension and the remedy. None is expected, since views redistribute what they must.
void try_view(const DeviceMesh& mesh, const at::Tensor& x, const Placements& placements, const Shape& to, Fuzz& fuzz) {
  const auto what = c10::str(x.sizes(), " ", to_string(placements), " as ", at::IntArrayRef(to));
  const auto d = distribute_tensor(x, mesh, placements);
  ++fuzz.views;
  try {
    const auto y = d.view(to);
    if (at::equal(DTensor(y).full_tensor(), x.view(to))) return;
    ++fuzz.wrong;
  } catch (const c10::Error& e) {
    ++fuzz.refused;
    EXPECT_NE(std::string(e.what()).find("dim"), std::string::npos) << what;
  }
  if (fuzz.first.empty()) fuzz.first = what;
}

void fuzz_views(const Shape& mesh_shape, std::int64_t n, const std::vector<Placement>& choices) {
  on_mesh(mesh_shape, [&](const DeviceMesh& mesh) {
    Fuzz fuzz;
    Draw draw(7);
    for (const auto& from : shapes_of(n)) {
      const auto x = at::arange(n, at::kDouble).view(from);
      for (const auto& to : shapes_of(n)) {
        for (const auto& first : choices) {
          if (first.is_shard() && first.dim() >= x.dim()) continue;
          auto placements = all_axes(mesh, first);
          for (std::size_t a = 1; a < placements.size(); ++a) placements[a] = any_placement(draw, x.dim(), false);
          try_view(mesh, x, placements, to, fuzz);
        }
      }
    }
    EXPECT_GT(fuzz.views, 300);
    EXPECT_EQ(fuzz.wrong, 0) << fuzz.first << " of " << fuzz.views;
    EXPECT_EQ(fuzz.refused, 0) << fuzz.first << " of " << fuzz.views;
  });
}

TEST(Views, NoViewGivesWrongPlacements) {
  const std::vector<Placement> shards{Shard(0), Shard(1), Shard(2)};
  for (const Shape& mesh : {Shape{2}, Shape{3}, Shape{4}, Shape{2, 2}, Shape{2, 3}}) {
    fuzz_views(mesh, 12, shards);
  }
  fuzz_views({2}, 24, shards);
  fuzz_views({2, 2}, 24, shards);
  fuzz_views({3}, 30, shards);
  fuzz_views({2, 2, 2}, 24, {Shard(0), Shard(1)});
  fuzz_views({2}, 24, {StridedShard(0, 2), StridedShard(1, 2), StridedShard(0, 3)});
  fuzz_views({2, 2}, 24, {StridedShard(0, 2), StridedShard(1, 2)});
}

TEST(Views, ReshapesOfAnyTensorEqualOneDevice) {
  for_all("reshape, flatten and unflatten, values and gradients", [](const DeviceMesh& mesh, Draw& draw) {
    const auto sizes = draw.sizes(3, 0, 6);
    const auto x = draw.normal(sizes);
    const auto a = draw.integer(0, 1);
    const auto merged = [&](const at::Tensor& t) { return t.flatten(a, a + 1); };
    equal_here(mesh, draw, "flatten", {x}, [&](const auto& t) { return merged(t[0]) * 2; });
    equal_here(mesh, draw, "unflatten", {x}, [&](const auto& t) {
      return merged(t[0] * 2).unflatten(a, {sizes[a], sizes[a + 1]}) * 3;
    });
    equal_here(mesh, draw, "of a transpose", {x}, [&](const auto& t) {
      return t[0].transpose(a, a + 1).reshape({sizes[0] * sizes[1] * sizes[2]}).square();
    });
    equal_here(mesh, draw, "squeezed", {x}, [&](const auto& t) {
      return t[0].unsqueeze(a).expand({-1, -1, -1, -1}).squeeze().sin();
    });
  });
}

using InPlaceView = std::function<void(at::Tensor&)>;

InPlaceView any_inplace_view(Draw& draw, const at::Tensor& x) {
  const auto last = std::max<std::int64_t>(x.dim(), 1) - 1;
  const auto a = draw.integer(0, last), b = draw.integer(0, last);
  switch (draw.integer(0, 5)) {
    case 0:
      return [=](at::Tensor& t) { t.squeeze_(a); };
    case 1:
      return [=](at::Tensor& t) { t.squeeze_(); };
    case 2:
      return [=](at::Tensor& t) { t.unsqueeze_(a); };
    case 3:
      return [=](at::Tensor& t) { t.transpose_(a, b); };
    case 4:
      return [=](at::Tensor& t) { t.swapdims_(a, b); };
    default:
      return [=](at::Tensor& t) { t.dim() == 2 ? t.t_() : t.squeeze_(b); };
  }
}

TEST(Views, InPlaceViewsKeepSpecAndLocalInStep) {
  for_all("squeeze_, unsqueeze_, t_, transpose_", [](const DeviceMesh& mesh, Draw& draw) {
    auto regular = draw.normal(draw.sizes(draw.integer(1, 3), 0, 3));
    at::Tensor x = distribute_tensor(regular.clone(), mesh, any_placements(draw, mesh, regular.dim()));
    const at::Tensor handle = x;
    for (int i = 0; i < 3; ++i) {
      const auto what = c10::str("step ", i, " of ", DTensor(x).spec_str());
      const auto step = any_inplace_view(draw, regular);
      if (raises(mesh, [&] { step(x); })) {
        require_close(x, regular, "refused " + what);  // Unchanged after the error.
        continue;
      }
      step(regular);
      const DTensor now(handle);
      TORCH_CHECK(now.sizes() == regular.sizes(), what, " became ", now.spec_str());
      require_close(now, regular, what);
      const auto again = DTensor::from_local(now.to_local(), mesh, now.placements(), now.sizes());
      require_close(again, regular, "local of " + what);
      x.add_(1);
      regular.add_(1);
      require_close(handle, regular, "written after " + what);
    }
  });
}

// The bits of summands do not add up to those of the sum, and max(-x) is not -max(x).
TEST(Views, ViewsAsAnotherDtypeUseTheFullValue) {
  const std::pair<at::ScalarType, at::ScalarType> types[] = {
      {at::kHalf, at::kBFloat16}, {at::kFloat, at::kHalf}, {at::kInt, at::kFloat}, {at::kDouble, at::kLong}};
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const double share = mesh.coordinate()->at(0) == 0 ? 1.5 : 1000.0;
    for (const auto& [from, to] : types) {
      const auto x = DTensor::from_local(at::full({4}, share).to(from), mesh, {Partial()}, {4}, {1});
      require_same(full_of(x.view(to)), DTensor(x).full_tensor().view(to), c10::str(from, " as ", to));
      EXPECT_TRUE(DTensor(x.view(from)).placements()[0].is_partial());
    }
    const auto most = DTensor::from_local(at::full({4}, share), mesh, {Partial(ReduceOp::max)}, {4}, {1});
    require_same(full_of(at::_neg_view(most)), at::full({4}, -1000.0), "negated");
  });
}

std::size_t collectives(const std::function<void()>& fn) {
  std::size_t count = 0;
  const EventListener listener([&](const Event&) { ++count; }, {Event::Kind::collective});
  fn();
  return count;
}

TEST(Views, LinearOfShardedSequencesEqualsOneDevice) {
  for_all("linear with three dimensions", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(draw.sizes(3, 0, 9)), w = draw.normal({draw.integer(1, 5), x.size(2)});
    const auto linear = [](const auto& t) { return at::linear(t[0], t[1], t[2]); };
    equal_here(mesh, draw, "linear", {x, w, draw.normal({w.size(0)})}, linear);
  });
  for (const Shape& shape : mesh_shapes()) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      for (const std::int64_t dim : {0, 1}) {  // Batch or sequence split on every axis: no communication.
        const auto x =
            distribute_tensor(Draw(1).normal({24, 24, 4}), mesh, all_axes(mesh, Shard(dim))).requires_grad_();
        const auto w = distribute_tensor(Draw(2).normal({3, 4}), mesh, all_axes(mesh, Replicate()));
        EXPECT_EQ(collectives([&] {
                    const auto y = at::linear(x, w);
                    torch::autograd::grad({y}, {x}, {y.detach()});
                  }),
                  0u);
      }
    });
  }
}

}  // namespace
}  // namespace dtensor::test
