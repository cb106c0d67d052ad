// Writes, views, scalar reads and data-dependent sizes.
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

at::Tensor real(const Shape& sizes, std::uint64_t seed = 1) { return Draw(seed).normal(sizes); }

using View = std::function<at::Tensor(const at::Tensor&)>;

std::size_t collectives(const std::function<void()>& fn) {
  std::size_t count = 0;
  EventListener listener([&](const Event& event) { count += event.kind == Event::Kind::collective; });
  fn();
  return count;
}

// Either the base changes as on one device, or every rank throws and the base is unchanged.
TEST(Writes, WritesToEveryViewReachTheBaseOrThrow) {
  const std::vector<std::pair<const char*, View>> views = {
      {"slice", [](const auto& t) { return t.slice(0, 0, 2); }},
      {"select", [](const auto& t) { return t.select(0, 5); }},
      {"select 1", [](const auto& t) { return t.select(1, 3); }},
      {"step", [](const auto& t) { return t.slice(0, 0, 8, 2); }},
      {"chunk", [](const auto& t) { return t.chunk(2, 0)[1]; }},
      {"split", [](const auto& t) { return t.split(3, 1)[0]; }},
      {"narrow", [](const auto& t) { return t.narrow(1, 2, 3); }},
      {"diagonal", [](const auto& t) { return t.diagonal(); }},
      {"view", [](const auto& t) { return t.view(-1).slice(0, 0, 10); }},
      {"transpose", [](const auto& t) { return t.t().select(0, 1); }},
      {"unbind", [](const auto& t) { return t.unbind(0)[2]; }},
      {"view of a materialized view",
       [](const auto& t) {
         return t.view(-1).slice(0, 0, 10).view({2, 5}).select(0, 1);
       }},
      {"expand", [](const auto& t) { return t.unsqueeze(0).select(0, 0); }}};
  for (const auto& [name, view] : views) {
    const auto regular = real({8, 8});
    auto expected = regular.clone();
    view(expected).fill_(7);
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      on_mesh({2}, [&, name = name, view = view](const DeviceMesh& mesh) {
        auto x = distribute_tensor(regular.clone(), mesh, {placement});
        bool raised = false;
        try {
          view(x).fill_(7);
        } catch (const c10::Error&) {
          raised = true;
        }
        expect_close(x, raised ? regular : expected, c10::str(name, " ", placement.str()));
        const auto all = at::full({1}, raised ? 1.0 : 0.0);
        mesh.communicator().all_reduce(all, ReduceOp::sum).wait();
        EXPECT_TRUE(all.item<float>() == 0 || all.item<float>() == 2) << name;
      });
    }
  }
}

View any_view(Draw& draw, const at::Tensor& x) {
  const auto d = draw.integer(0, x.dim() - 1), size = x.size(d), start = draw.integer(0, size - 1);
  const auto length = draw.integer(1, size - start), step = draw.integer(1, 2);
  switch (draw.integer(0, 6)) {
    case 0:
      return [=](const at::Tensor& t) { return t.slice(d, start, start + length, step); };
    case 1:
      return [=](const at::Tensor& t) { return t.dim() > 1 ? t.select(d, start) : t; };
    case 2:
      return [=](const at::Tensor& t) { return t.transpose(0, -1); };
    case 3:
      return [=](const at::Tensor& t) { return t.is_contiguous() ? t.view(-1) : t.unsqueeze(d); };
    case 4:
      return [=](const at::Tensor& t) { return t.dim() > 1 ? t.diagonal(0, 0, 1) : t; };
    case 5:
      return [=](const at::Tensor& t) { return t.unfold(d, length, length); };
    default:
      return [=](const at::Tensor& t) { return t.narrow(d, start, length); };
  }
}

View any_views(Draw& draw, const at::Tensor& x) {
  View all = [](const at::Tensor& t) { return t; };
  for (auto i = draw.integer(1, 3); i > 0; --i) {
    all = [all, next = any_view(draw, all(x))](const at::Tensor& t) { return next(all(t)); };
  }
  return all;
}

// Two views of one tensor: a write to one changes the other and the base, although data was redistributed for them.
at::Tensor write_and_read(at::Tensor y, const View& first, const View& second) {
  auto a = first(y), b = second(y);
  a.mul_(3);
  const auto seen = b.sum() + (a * 1).square().sum();  // Of a copy, since a changes.
  b.add_(seen);
  a.sub_(a * 0.5);
  y.add_(1);
  return y * y + a.sum() * b.square().sum();
}

TEST(Writes, WritesToMaterializedViewsReachBaseAndOtherViews) {
  for_all("two chains of views", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(draw.sizes(draw.integer(1, 3), 1, 6));
    const auto first = any_views(draw, x), second = any_views(draw, x);
    equal_here(mesh, draw, "under grad", {x}, [&](const auto& t) { return write_and_read(t[0] * 2, first, second); },
               {.tolerance = 1e-6});
    const c10::InferenceMode inference;
    equal_here(mesh, draw, "in inference", {x}, [&](const auto& t) { return write_and_read(t[0] * 2, first, second); },
               {.tolerance = 1e-6, .grad = false});
  });
}

// All sizes of up to three dimensions with entries 1 and 2.
std::vector<Shape> shapes_with_ones() {
  std::vector<Shape> all{{1}, {2}};
  for (std::size_t i = 0; i < 6; ++i) {
    for (const std::int64_t size : {1, 2}) {
      all.push_back(all[i]);
      all.back().push_back(size);
    }
  }
  return all;
}

const std::vector<View>& views_of_ones() {
  static const std::vector<View> all{
      [](const at::Tensor& t) { return t.transpose(0, -1); }, [](at::Tensor t) { return t.transpose_(0, -1); },
      [](const at::Tensor& t) { return t.squeeze(-1); },      [](at::Tensor t) { return t.squeeze_(0); },
      [](const at::Tensor& t) { return t.narrow(0, 0, 1); },  [](const at::Tensor& t) { return t.select(-1, 0); },
      [](const at::Tensor& t) { return t.reshape(-1); },      [](at::Tensor t) { return t.unsqueeze_(-1); }};
  return all;
}

// A rank that has all elements need not copy them for a view with other placements. The view then shares the memory of
// the base, with other strides in dimensions of size 1.
TEST(Writes, ViewsThatShareMemoryWithTheirBaseCanBeWritten) {
  const auto write = [](const at::Tensor& base, const View& first, const View& second) {
    auto view = first(base);
    view.add_(1);
    if (view.dim() > 0) second(view).mul_(2);
    return view;
  };
  for (const Shape& mesh_shape : {Shape{2}, Shape{2, 3}}) {
    on_mesh(mesh_shape, [&](const DeviceMesh& mesh) {
      Draw draw(1);
      for (const Shape& sizes : shapes_with_ones()) {
        for (const View& first : views_of_ones()) {
          for (const View& second : views_of_ones()) {
            const auto placements = any_placements(draw, mesh, static_cast<std::int64_t>(sizes.size()));
            const auto what = c10::str(at::IntArrayRef(sizes), " ", to_string(placements));
            const at::Tensor regular = draw.normal(sizes), base = distribute_tensor(regular.clone(), mesh, placements);
            const auto expected = write(regular, first, second);
            require_close(write(base, first, second), expected, "view of " + what);
            require_close(base, regular, "base of " + what);
          }
        }
      }
    });
  }
}

TEST(Writes, IndexPutAndScatterEqualOneDevice) {
  for (const auto& own : {Shard(0), Shard(1), Replicate(), Partial()}) {
    for (const auto& values : {Shard(0), Shard(1), Replicate()}) {
      for (const bool accumulate : {false, true}) {
        on_mesh({2}, [&](const DeviceMesh& mesh) {
          const auto regular = real({4, 4}), v = real({3, 4}, 2), i = at::tensor({3, 0, 2});
          auto x = distribute_tensor(regular.clone(), mesh, {own});
          x.index_put_({distribute_tensor(i, mesh, {Replicate()})}, distribute_tensor(v, mesh, {values}), accumulate);
          expect_close(x, regular.clone().index_put_({i}, v, accumulate), own.str() + values.str());
          EXPECT_EQ(x.placements(), (Placements{own}));
        });
      }
    }
  }
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto x = distribute_tensor(at::zeros({2, 4, 8}), mesh, {Shard(1)});
    const auto i = distribute_tensor(at::ones({2, 4, 3}, at::kLong), mesh, {Shard(1)});
    EXPECT_EQ(collectives([&] { x.scatter_(-1, i, 1); }), 0u);
    expect_close(x, at::zeros({2, 4, 8}).index_fill_(2, at::ones({1}, at::kLong), 1), "scatter");
  });
}

// ATen's meta kernels read entry 0.
TEST(Writes, EmptyIndicesEqualOneDevice) {
  const auto none = at::empty({0}, at::kLong);
  const std::vector<at::Tensor> inputs{real({5, 3}), none, real({0, 3}, 2)};
  equal_everywhere("index_add", inputs, [](const auto& t) { return at::index_add(t[0], 0, t[1], t[2], 2); });
  equal_everywhere("index_reduce", inputs, [](const auto& t) { return at::index_reduce(t[0], 0, t[1], t[2], "amax"); });
  equal_everywhere("index_select", {real({5, 3}), none},
                   [](const auto& t) { return at::index_select(t[0], 0, t[1]).sum() + t[0].sum(); });
}

TEST(Writes, NonlinearOperatorsReducePartialsFirst) {
  equal_everywhere("clamp", {real({6, 3})}, [](const auto& t) { return (t[0] * 1).clamp_(-0.5, 0.5); });
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto x = distribute_tensor(at::full({3}, 72.0), mesh, {Partial()});
    x.clamp_(c10::nullopt, 2);
    EXPECT_EQ(x.placements(), (Placements{Partial()}));
    expect_close(x, at::full({3}, 2.0), "clamp_");
  });
}

TEST(Writes, OutKeepsItsPlacements) {
  const auto a = real({6, 4}), b = real({6, 4}, 2), m = real({4, 3}, 3);
  for (const auto& p : {Shard(0), Shard(1), Replicate(), Partial()}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto x = distribute_tensor(a, mesh, {Shard(0)}), y = distribute_tensor(b, mesh, {Shard(1)});
      auto out = distribute_tensor(at::zeros({6, 4}, at::kDouble), mesh, {p});
      at::add_out(out, x, y);
      expect_close(out, a + b, "add " + p.str());
      EXPECT_EQ(out.placements(), (Placements{p}));
      auto product = distribute_tensor(at::zeros({6, 3}, at::kDouble), mesh, {p});
      at::mm_out(product, x, distribute_tensor(m, mesh, {Shard(0)}));
      expect_close(product, a.mm(m), "mm " + p.str());
      auto empty = distribute_tensor(at::empty({0}, at::kDouble), mesh, {Replicate()});
      at::mul_out(empty, x, y);
      expect_close(empty, a * b, "grown");
      auto ones = distribute_tensor(at::empty({0}, at::kDouble), mesh, {Replicate()});
      at::ones_out(ones, {2, 3});
      expect_close(ones, at::ones({2, 3}, at::kDouble), "factory");
    });
  }
}

TEST(Writes, ChangedArgumentsAreNotCached) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto regular = real({4, 6});
    const auto x = distribute_tensor(regular, mesh, {Shard(0)});
    for (int i = 1; i < 4; ++i) {
      expect_close(x.mean() * i, regular.mean() * i, "scalar");
      expect_close(at::add(x, x, i), at::add(regular, regular, i), "alpha");
      expect_close(x.sum(i % 2), regular.sum(i % 2), "dim");
      expect_close(at::linalg_vector_norm(x, i), at::linalg_vector_norm(regular, i), "order");
      expect_close(at::histc(x, 4, 0, i), at::histc(regular, 4, 0, i), "range");
    }
  });
}

TEST(Writes, DataDependentSizesAreGlobal) {
  const auto x = real({5, 4});
  const auto all = [&](const char* name, const Function& fn) { equal_everywhere(name, {x}, fn); };
  all("masked_select", [](const auto& t) { return at::masked_select(t[0], t[0].gt(0)); });
  all("nonzero", [](const auto& t) { return at::nonzero(t[0].detach().gt(0)); });
  all("unique", [](const auto& t) { return std::get<0>(at::_unique2(t[0].detach().gt(0).to(at::kLong))); });
  all("mask index", [](const auto& t) { return t[0].index({t[0].gt(0.5)}); });
}

TEST(Writes, EmptyShardsThrowOnAllRanksOrNone) {
  const auto x = real({2, 3});
  const auto all = [&](const char* name, const Function& fn) { equal_everywhere(name, {x}, fn); };
  all("amax", [](const auto& t) { return t[0].amax(0); });
  all("min", [](const auto& t) { return t[0].min(); });
  all("norm", [](const auto& t) { return at::linalg_vector_norm(t[0], INFINITY); });
  all("argmax", [](const auto& t) { return t[0].detach().argmax(0); });
  all("var", [](const auto& t) { return t[0].var(0) + t[0].std() + t[0].mean(0); });
  all("softmax", [](const auto& t) { return t[0].softmax(0); });
  all("cumsum", [](const auto& t) { return t[0].cumsum(0); });
  all("topk", [](const auto& t) { return std::get<0>(t[0].topk(2, 0)); });
  all("sort", [](const auto& t) { return std::get<0>(t[0].sort(0)); });
}

TEST(Writes, LinearOfShardedSequencesEqualsOneDevice) {
  equal_everywhere("linear", {real({2, 8, 4}), real({3, 4}, 2), real({3}, 3)},
                   [](const auto& t) { return at::linear(t[0], t[1], t[2]); });
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(real({2, 8, 4}), mesh, {Shard(1), Shard(1)});
    const auto w = distribute_tensor(real({3, 4}, 2), mesh, {Replicate(), Replicate()});
    EXPECT_EQ(collectives([&] { at::linear(x, w); }), 0u);
    const auto y = distribute_tensor(real({2, 2, 4}), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(collectives([&] { at::matmul(y, w.t()); }), 0u);
  });
}

TEST(Writes, AnySubsetOfResultsMayHaveGradients) {
  const auto x = real({4, 6});
  const auto all = [&](const char* name, const Function& fn) { equal_everywhere(name, {x}, fn); };
  all("split", [](const auto& t) { return t[0].split(4, 1)[1]; });
  all("chunk", [](const auto& t) { return t[0].chunk(2, -1)[0]; });
  all("unbind", [](const auto& t) { return t[0].unbind(0)[1]; });
  all("var_mean", [](const auto& t) { return std::get<1>(at::var_mean(t[0], 1)); });
  all("topk", [](const auto& t) { return std::get<0>(t[0].topk(2, 1)); });
}

TEST(Writes, RegularConstantsCountAsReplicate) {
  const auto mask = at::ones({4, 6}, at::kBool).tril(), row = real({6}, 4);
  equal_everywhere("masked", {real({4, 6})}, [&](const auto& t) {
    return t[0].masked_fill(mask, 0) + row + at::where(mask, t[0], row) + at::cat({t[0], row.unsqueeze(0)}).sum(0);
  });
}

TEST(Writes, DropoutOfPartialEqualsOneDevice) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    manual_seed(mesh, 5);
    const auto unsharded = at::dropout(distribute_tensor(at::ones({8, 4}), mesh, {Replicate()}), 0.5, true);
    manual_seed(mesh, 5);
    const auto part = at::dropout(distribute_tensor(at::ones({8, 4}), mesh, {Partial()}), 0.5, true);
    expect_close(part, DTensor(unsharded).full_tensor(), "dropout");
  });
}

TEST(Writes, EmbeddingTablesAreRenormalized) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      auto regular = real({6, 4});
      const auto index = at::tensor({1, 4});
      auto table = distribute_tensor(regular.clone(), mesh, {p});
      at::embedding_renorm_(table, distribute_tensor(index, mesh, {Replicate()}), 0.5, 2);
      at::embedding_renorm_(regular, index, 0.5, 2);
      expect_close(table, regular, p.str());
    }
  });
}

}  // namespace
}  // namespace dtensor::test
