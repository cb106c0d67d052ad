// Uneven, empty, nested and strided layouts, and the local/global boundary.
#include <ATen/core/Reduction.h>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

// All lists of placements over {Replicate, shards and strided shards of two dimensions} on up to three axes.
std::vector<Placements> shard_lists(std::size_t ndim) {
  const std::vector<Placement> choices{Replicate(), Shard(0), Shard(1), StridedShard(0, 2), StridedShard(1, 3)};
  std::vector<Placements> lists{{}};
  for (std::size_t axis = 0; axis < ndim; ++axis) {
    std::vector<Placements> longer;
    for (const auto& list : lists) {
      for (const auto& p : choices) longer.push_back(list), longer.back().push_back(p);
    }
    lists = std::move(longer);
  }
  return lists;
}

Shape any_sizes(Draw& draw, std::int64_t least = 0) { return draw.sizes(draw.integer(1, 3), least, 9); }

TEST(Layouts, NestedShardsAreNotFlatChunks) {
  for (const Shape& shape : mesh_shapes()) {
    on_mesh(shape, [](const DeviceMesh& mesh) {
      for (const bool flattened : {false, true}) {
        if (flattened) (void)mesh.flatten("all").communicator(std::int64_t{0});
        for (std::int64_t n = 0; n < 10; ++n) {
          const auto x = Draw(static_cast<std::uint64_t>(n)).normal({n, 3});
          for (const auto& p : {Shard(0), Shard(1), StridedShard(0, 2)}) {
            const auto nested = distribute_tensor(x, mesh, all_axes(mesh, p));
            const auto what = nested.spec_str();
            require_same(nested.full_tensor(), x, what);
            require_same(nested.redistribute(all_axes(mesh, Replicate())).to_local(), x, what);
            require_same(distribute_tensor(x, mesh.flatten(), {p}).full_tensor(), x, "flat " + what);
          }
        }
      }
    });
  }
}

TEST(Layouts, MeansCountAllElements) {
  for_all("mean, var, std and losses", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(any_sizes(draw, 1)), y = draw.normal(x.sizes().vec());
    const auto dim = draw.integer(0, x.dim() - 1);
    const bool keep = draw.coin();
    equal_here(mesh, draw, "mean", {x}, [&](const auto& t) { return t[0].mean() + t[0].mean(dim, keep).sum(); });
    equal_here(mesh, draw, "mean dim", {x}, [&](const auto& t) { return t[0].mean(dim, keep); });
    equal_here(mesh, draw, "var", {x}, [&](const auto& t) { return at::var(t[0], dim, false, keep); });
    if (x.numel() > 1) equal_here(mesh, draw, "std", {x}, [](const auto& t) { return at::std(t[0]); });
    equal_here(mesh, draw, "mse", {x, y}, [](const auto& t) { return at::mse_loss(t[0], t[1]); });
    equal_here(mesh, draw, "huber", {x, y}, [](const auto& t) { return at::huber_loss(t[0], t[1]); });
    equal_here(mesh, draw, "l1", {x, y}, [](const auto& t) { return at::l1_loss(t[0], t[1]); });
  });
}

// Rank r passes sizes[r] rows: either they are the chunks of one size, or every rank throws.
TEST(Layouts, InconsistentLocalSizesAreRefused) {
  for_all("from_local",
          [](const DeviceMesh& mesh, Draw& draw) {
            const auto ranks = mesh.size(), n = draw.integer(0, 9), chunk = (n + ranks - 1) / ranks;
            Shape rows;
            for (std::int64_t r = 0; r < ranks; ++r) rows.push_back(std::clamp<std::int64_t>(n - r * chunk, 0, chunk));
            if (draw.coin()) rows = draw.sizes(ranks, 0, 4);
            const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
            const auto part = (total + ranks - 1) / ranks;
            bool chunks = true;
            for (std::int64_t r = 0; r < ranks; ++r) {
              chunks =
                  chunks && rows[static_cast<std::size_t>(r)] == std::clamp<std::int64_t>(total - r * part, 0, part);
            }
            const auto mine = rows[static_cast<std::size_t>(mesh.coordinate()->front())];
            DTensor x;
            const bool raised = raises(mesh, [&] { x = DTensor::from_local(at::ones({mine, 2}), mesh, {Shard(0)}); });
            TORCH_CHECK(raised == !chunks, "rows ", at::IntArrayRef(rows), raised ? " refused" : " accepted");
            if (!raised)
              TORCH_CHECK(x.sizes().equals({total, 2}) && x.full_tensor().sum().item<double>() == 2. * total);
          },
          {{1}, {2}, {3}, {4}});
}

// Also on Partial tensors, with linear functions.
TEST(Layouts, LocalMapKeepsGlobalSizes) {
  for_all("local_map", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(any_sizes(draw));
    auto where = draw.placements(mesh, x.dim());
    bool shares = false;
    for (auto& p : where) {
      shares = shares || p.is_partial();
      if (p.is_partial() && draw.coin()) p = Partial(ReduceOp::avg);
    }
    const auto mapped = [&](const at::Tensor& t) { return shares ? t * 3 : t * t; };
    const auto everywhere = [&](const std::vector<at::Tensor>& t) {
      if (!is_dtensor(t[0])) return mapped(t[0]);
      return local_map([&](const auto& in) { return std::vector<at::Tensor>{mapped(in[0])}; }, {t[0]}, {where})[0];
    };
    equal_placed(mesh, draw, "local_map", {x}, everywhere, [&](const at::Tensor&) { return where; });
  });
}

// Tensor parallelism first, then full sharding of its shards, on one dimension or on two.
TEST(Layouts, FullShardingOfTensorParallelWeights) {
  for (const Shape& shape : {Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2}, Shape{2, 3}}) {
    run_local(count(shape), [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, shape, {"shard", "tp"});
      for (std::int64_t n = 1; n < 10; ++n) {
        for (const auto& tp : {Shard(0), Shard(1), Replicate()}) {
          const auto x = Draw(static_cast<std::uint64_t>(n)).normal({n, 3});
          at::Tensor w = distribute_tensor(x, mesh["tp"], {tp}).requires_grad_();
          fully_shard(NamedTensors{{"w", &w}}, mesh);
          const auto what = DTensor(w).spec_str();
          require_same(DTensor(w.detach()).full_tensor(), x, what);
          w.square().sum().backward();
          require_close(w.grad(), x * 2, what + " grad");
        }
      }
    });
  }
}

TEST(Layouts, StridedShardsRoundTrip) {
  for (const Shape& shape : {Shape{2, 2}, Shape{3, 2}, Shape{2, 3}, Shape{2, 2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      for (std::int64_t n = 0; n < 13; ++n) {
        const auto x = Draw(static_cast<std::uint64_t>(n)).normal({n, 2});
        for (const std::int64_t factor : {2, 3, 4}) {
          auto placements = all_axes(mesh, Shard(0));
          placements[0] = StridedShard(0, factor);
          const auto d = distribute_tensor(x, mesh, placements);
          require_same(d.full_tensor(), x, d.spec_str());
          const auto back = DTensor::from_local(d.to_local(), mesh, placements, x.sizes());
          require_same(back.full_tensor(), x, "from_local " + d.spec_str());
          placements[0] = Shard(0);
          require_same(d.redistribute(placements).full_tensor(), x, "to shards " + d.spec_str());
        }
      }
    });
  }
}

TEST(Layouts, EveryRedistributionMatchesDistributeTensor) {
  for (const Shape& shape : mesh_shapes()) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      const auto lists = shard_lists(shape.size());
      Draw draw(static_cast<std::uint64_t>(mesh.size()));
      const bool all = lists.size() < 26;
      for (std::size_t i = 0; i < (all ? lists.size() * lists.size() : 600); ++i) {
        const auto pick =
            all ? static_cast<std::int64_t>(i) : draw.integer(0, std::ssize(lists) * std::ssize(lists) - 1);
        const auto& from = lists[static_cast<std::size_t>(pick) / lists.size()];
        const auto& to = lists[static_cast<std::size_t>(pick) % lists.size()];
        const auto x = draw.normal(draw.sizes(2, 0, 9));
        const auto there = distribute_tensor(x, mesh, from).redistribute(to);
        require_same(there.to_local(), distribute_tensor(x, mesh, to).to_local(),
                     to_string(from) + " -> " + there.spec_str());
      }
    });
  }
}

TEST(Layouts, RedistributionIsTheIdentityForwardAndBackward) {
  for_all("any pair of placements, with Partial", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(any_sizes(draw));
    const auto to = any_placements(draw, mesh, x.dim());
    equal_here(mesh, draw, "to " + to_string(to), {x},
               [&](const auto& t) { return is_dtensor(t[0]) ? at::Tensor(DTensor(t[0]).redistribute(to)) : t[0] * 1; });
  });
}

TEST(Layouts, BiasOfEmptyProductIsAddedOnce) {
  for_all("no elements to contract", [](const DeviceMesh& mesh, Draw& draw) {
    const auto m = draw.integer(0, 5), k = draw.integer(0, 2), n = draw.integer(0, 5);
    const auto x = draw.normal({m, k}), w = draw.normal({k, n}), b = draw.normal({n});
    equal_here(mesh, draw, "addmm", {b, x, w}, [](const auto& t) { return at::addmm(t[0], t[1], t[2], 2, 3); });
    equal_here(mesh, draw, "linear", {x, w.t().contiguous(), b},
               [](const auto& t) { return at::linear(t[0], t[1], t[2]); });
    equal_here(mesh, draw, "baddbmm", {draw.normal({2, m, n}), draw.normal({2, m, k}), draw.normal({2, k, n})},
               [](const auto& t) { return at::baddbmm(t[0], t[1], t[2]); });
    equal_here(mesh, draw, "addmv", {b, w.t().contiguous(), draw.normal({k})},
               [](const auto& t) { return at::addmv(t[0], t[1], t[2]); });
  });
}

// To the local tensor and back, for every placement: values and gradients are unchanged.
TEST(Layouts, LocalRoundTripIsTheIdentity) {
  for_all("to_local, from_local", [](const DeviceMesh& mesh, Draw& draw) {
    const auto x = draw.normal(any_sizes(draw));
    const auto via = any_placements(draw, mesh, x.dim());
    const bool reduced = draw.coin();
    equal_here(mesh, draw, "through " + to_string(via), {x}, [&](const auto& t) {
      const auto y = t[0] * 2;
      if (!is_dtensor(y)) return reduced ? y.sum() * y.sum() : y * y;
      const auto there = DTensor(reduced ? y.sum() : y).redistribute(reduced ? all_axes(mesh, Partial()) : via);
      const at::Tensor back = DTensor::from_local(there.to_local(), mesh, there.placements(), there.sizes());
      return back * back;
    });
  });
}

}  // namespace
}  // namespace dtensor::test
