// Every pitfall of a tensor under the dispatcher, by name (docs/design.md, "dispatcher").
#include <c10/core/InferenceMode.h>

#include <sstream>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

DTensor shard_rows(const at::Tensor& full_tensor, const DeviceMesh& mesh) {
  return distribute_tensor(full_tensor, mesh, Placements(static_cast<std::size_t>(mesh.ndim()), Shard(0)));
}

TEST(Pitfalls, ListArgumentsOfTheCallerAreNotModified) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full_tensor = at::arange(12, at::kDouble).reshape({4, 3});
    std::vector<at::Tensor> list = {shard_rows(full_tensor, mesh), shard_rows(full_tensor, mesh)};
    expect_close(at::cat(list, 1), at::cat({full_tensor, full_tensor}, 1), "cat");
    EXPECT_TRUE(is_dtensor(list[0]));
    EXPECT_TRUE(is_dtensor(list[1]));
    c10::List<std::optional<at::Tensor>> indices;
    indices.push_back(std::nullopt);
    indices.push_back(distribute_tensor(at::tensor({0, 2}), mesh, {Replicate()}));
    expect_close(at::index(list[0], indices), full_tensor.index({at::indexing::Slice(), at::tensor({0, 2})}), "index");
    EXPECT_TRUE(is_dtensor(*indices.get(1)));
  });
}

TEST(Pitfalls, ViewThenInPlaceUnderGradWritesTheRightRow) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full_tensor = at::arange(12, at::kDouble).reshape({4, 3});
    auto reference = full_tensor.clone().requires_grad_();
    auto expected = reference * 2;
    expected.select(0, 1).mul_(5);
    expected.square().sum().backward();
    for (const auto& placement : {Shard(1), Replicate()}) {
      auto x = distribute_tensor(full_tensor, mesh, {placement}).requires_grad_();
      auto y = x * 2;
      y.select(0, 1).mul_(5);
      expect_close(y.detach(), expected.detach(), "value " + placement.str());
      y.square().sum().backward();
      expect_close(x.grad(), reference.grad(), "grad " + placement.str());
    }
  });
}

TEST(Pitfalls, InPlaceOnMaterializedViewWritesTheBase) {
  for (const bool inference : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const c10::InferenceMode mode(inference);
      auto x = shard_rows(at::zeros({8, 8}, at::kDouble), mesh);
      x.slice(0, 0, 2).fill_(1);
      auto turned = x.slice(0, 3, 5);
      turned.t_().fill_(2);
      auto expected = at::zeros({8, 8}, at::kDouble);
      expected.slice(0, 0, 2).fill_(1);
      expected.slice(0, 3, 5).fill_(2);
      expect_close(x, expected, "written");
    });
  }
}

TEST(Pitfalls, MaterializedViewFollowsChangesOfItsBase) {
  for (const bool inference : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const c10::InferenceMode mode(inference);
      auto x = shard_rows(at::zeros({8, 8}, at::kDouble), mesh);
      const auto view = x.slice(0, 0, 3), of_view = view.t();
      expect_close(view, at::zeros({3, 8}, at::kDouble), "before");
      x.add_(1);
      expect_close(of_view, at::ones({8, 3}, at::kDouble), "after");
      EXPECT_EQ(view.sum().item<double>(), 24);
    });
  }
}

TEST(Pitfalls, InPlaceViewOperatorsKeepSpecAndLocalInStep) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full_tensor = at::arange(12, at::kDouble).reshape({1, 4, 3});
    auto x = distribute_tensor(full_tensor, mesh, {Shard(1)});
    const auto handle = x;
    x.squeeze_(0);
    x.t_();
    EXPECT_EQ(DTensor(handle).placements(), (Placements{Shard(1)}));
    EXPECT_EQ(DTensor(handle).to_local().sizes(), (at::IntArrayRef{3, 2}));
    expect_close(handle, full_tensor.squeeze(0).t(), "t_");
    x.unsqueeze_(0);
    expect_close(handle, full_tensor.squeeze(0).t().unsqueeze(0), "unsqueeze_");
  });
}

TEST(Pitfalls, DetachAndSavedOutputsStayDTensors) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto x = shard_rows(at::ones({4, 3}, at::kDouble), mesh).requires_grad_();
    const auto y = at::exp(x);  // Saves its output.
    EXPECT_TRUE(is_dtensor(y.detach()));
    EXPECT_TRUE(is_dtensor(x.variable_data()));
    y.sum().backward();
    expect_close(x.grad(), at::exp(at::ones({4, 3}, at::kDouble)), "exp");
  });
}

TEST(Pitfalls, InPlaceBumpsTheVersionOfTheLocalTensor) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto x = shard_rows(at::ones({4, 3}, at::kDouble), mesh);
    const auto local = x.to_local();
    const auto before = local._version();
    x.add_(1);
    EXPECT_GT(local._version(), before);
    EXPECT_EQ(local.sum().item<double>(), 12);
  });
}

TEST(Pitfalls, PrintingAHandleDoesNotCrash) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const DTensor x = shard_rows(at::ones({4, 3}), mesh);
    std::ostringstream out;
    out << x;
    EXPECT_NE(out.str().find("S(0)"), std::string::npos) << out.str();
    const at::Tensor handle = x;
    std::ostringstream regular;
    EXPECT_THROW(regular << handle, c10::Error);
  });
}

TEST(Pitfalls, InPlaceNeverChangesPlacements) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full_tensor = at::arange(12, at::kDouble).reshape({4, 3}) - 5;
    for (const auto& own : {Shard(0), Shard(1), Replicate(), Partial()}) {
      for (const auto& other : {Shard(0), Shard(1), Replicate(), Partial()}) {
        auto x = distribute_tensor(full_tensor, mesh, {own});
        x.add_(distribute_tensor(full_tensor, mesh, {other}));
        x.relu_();
        x.mul_(3);
        EXPECT_EQ(x.placements(), (Placements{own}));
        expect_close(x, (full_tensor + full_tensor).relu().mul(3), own.str() + " " + other.str());
      }
    }
  });
}

TEST(Pitfalls, UnusedOutputsGiveZeroGradients) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full_tensor = at::arange(12, at::kDouble).reshape({4, 3});
    for (const auto& placement : {Shard(0), Shard(1)}) {
      auto x = distribute_tensor(full_tensor, mesh, {placement}).requires_grad_();
      (x * 2).unbind(1)[1].sum().backward();
      auto expected = at::zeros({4, 3}, at::kDouble);
      expected.select(1, 1).fill_(2);
      expect_close(x.grad(), expected, "unbind");
      x.mutable_grad() = at::Tensor();
      (x * 2).chunk(2, 0)[0].sum().backward();
      expected = at::zeros({4, 3}, at::kDouble);
      expected.narrow(0, 0, 2).fill_(2);
      expect_close(x.grad(), expected, "chunk");
    }
  });
}

TEST(Pitfalls, LeafGradientsHaveThePlacementsOfTheLeaf) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    auto w = distribute_tensor(at::ones({4, 3}, at::kDouble), mesh, {Shard(0).as_storage(), Shard(1)}).requires_grad_();
    auto x = distribute_tensor(at::ones({6, 4}, at::kDouble), mesh, {Shard(0), Replicate()});
    at::mm(x, w).square().sum().backward();
    ASSERT_TRUE(is_dtensor(w.grad()));
    EXPECT_EQ(DTensor(w.grad()).placements(), (Placements{Shard(0), Shard(1)}));
    expect_close(w.grad(), at::full({4, 3}, 48.0, at::kDouble), "grad");
  });
}

TEST(Pitfalls, RegularOperandsThatDifferBetweenRanksAreAnError) {
  EXPECT_THROW(on_mesh({2},
                       [](const DeviceMesh& mesh) {
                         auto x = shard_rows(at::ones({4, 3}), mesh);
                         at::add(x, at::full({3}, static_cast<double>(mesh.coordinate()->front())));
                       }),
               std::exception);
}

TEST(Pitfalls, KernelsGetContiguousStatistics) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(5);
    const auto full_tensor = draw.normal({6, 5, 5}), cotangent = draw.normal({6, 5, 5});
    auto reference = full_tensor.clone().requires_grad_();
    (at::layer_norm(reference, {5}) * cotangent).sum().backward();
    auto x = distribute_tensor(full_tensor, mesh, {Replicate()}).requires_grad_();
    (at::layer_norm(x, {5}) * distribute_tensor(cotangent, mesh, {Shard(1)})).sum().backward();
    expect_close(x.grad(), reference.grad(), "layer norm");
  });
}

TEST(Pitfalls, StorageAccessIsAnError) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = shard_rows(at::ones({4, 3}), mesh);
    EXPECT_THROW(x.storage(), c10::Error);
    EXPECT_THROW(x.data_ptr<float>(), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor::test
