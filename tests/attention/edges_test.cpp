// Edge cases of attention on split sequences: ranks outside the mesh, no keys, gradients of some operands only, scopes.
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

Case small(AttentionStrategy strategy = AttentionStrategy::ring) {
  Case c;
  c.queries = c.keys = 10;
  c.options.causal = true;
  c.strategy = strategy;
  return c;
}

// Ranks outside the mesh store no data, but count the random operator.
TEST(AttentionEdgeCases, RanksOutsideTheMeshTakePart) {
  run_local(3, [](Communicator world) {
    const auto mesh = device_mesh(world, at::kCPU, {0, 1}, {2});
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
      auto c = small(strategy);
      c.options.dropout = 0.5;
      manual_seed(mesh, 3);
      const auto in = distributed(c, tensors_of(c), mesh);
      const AttentionStrategyScope scope(strategy);
      const auto y = attend(c, in, {});
      EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 4, 10, 4}));
      EXPECT_EQ(get_rng_state(mesh).counter, 1u);
      y.sum().backward();
      EXPECT_EQ(in[1].grad().sizes(), in[1].sizes());
    }
  });
}

TEST(AttentionEdgeCases, NoKeysGiveZeros) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto c = small();
    c.keys = 0;
    c.by_aten = false;
    const auto in = distributed(c, tensors_of(c), mesh);
    const auto y = attend(c, in, {});
    EXPECT_EQ(DTensor(y).full_tensor().abs().max().item<double>(), 0);
    y.sum().backward();
    EXPECT_EQ(DTensor(in[0].grad()).full_tensor().abs().max().item<double>(), 0);
  });
}

// Queries and keys each bring a RaggedShard of the batch, but a tensor can have only one.
TEST(AttentionEdgeCases, RaggedShardsOfOneDimensionOnTwoAxes) {
  Case c;
  c.mesh = {2, 2};
  c.batch = 3;
  const Placements keys = {RaggedShard(0, {2, 1}), Shard(2)};
  c.where = {{Replicate(), RaggedShard(0, {0, 3})}, keys, keys};
  check_case(c);
  c.where = {{Shard(2), RaggedShard(0, {0, 3})}, {RaggedShard(0, {2, 1}), Replicate()}, {Replicate(), Replicate()}};
  check_case(c);
}

TEST(AttentionEdgeCases, GradientsOfSomeOperands) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const std::size_t which : {0, 1, 2}) {
      const auto c = small();
      const auto t = tensors_of(c);
      std::vector<at::Tensor> regular{t.q.clone(), t.k.clone(), t.v.clone()}, in;
      for (const auto& x : regular) in.push_back(distribute_tensor(x, mesh, {Shard(2)}));
      regular[which].requires_grad_();
      in[which].requires_grad_();
      const AttentionStrategyScope scope(c.strategy);
      attend(c, in, {}).sum().backward();  // the incoming gradient is an expanded tensor
      expected_result(c, regular, {}).sum().backward();
      require(DTensor(in[which].grad()).full_tensor(), regular[which].grad(), c, "the gradient");
    }
  });
}

// Each operand in turn is a regular tensor; last, all of them are, with DTensor sinks.
TEST(AttentionEdgeCases, RegularOperandsCountAsReplicate) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (std::size_t which = 0; which < 4; ++which) {
      auto c = small();
      c.by_aten = false;
      c.options.sinks = at::arange(4, at::kDouble);
      const auto t = tensors_of(c);
      std::vector<at::Tensor> regular, in;
      for (const auto& x : t.inputs(c)) regular.push_back(x.clone().requires_grad_());
      for (std::size_t i = 0; i < 3; ++i) {
        const bool stays = i == which || which == 3;
        in.push_back(stays ? regular[i].detach().clone().requires_grad_()
                           : distribute_tensor(regular[i].detach(), mesh, {Shard(2)}).requires_grad_());
      }
      in.push_back(distribute_tensor(regular[3].detach(), mesh, {Replicate()}).requires_grad_());
      const AttentionStrategyScope scope(c.strategy);
      const auto y = attend(c, in, {});
      const auto wanted = expected_result(c, regular, {});
      require(DTensor(y).full_tensor(), wanted, c, "the result");
      const auto found = torch::autograd::grad({y.square().sum()}, in);
      const auto gradients = torch::autograd::grad({wanted.square().sum()}, regular);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const auto unsharded = is_dtensor(found[i]) ? DTensor(found[i]).full_tensor() : found[i];
        require(unsharded, gradients[i], c, c10::str("gradient ", i, " with ", which, " regular"));
      }
    }
  });
}

TEST(AttentionEdgeCases, ComputesWithoutGradients) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = small();
    const auto t = tensors_of(c);
    const auto wanted = expected_result(c, {t.q, t.k, t.v}, {});
    const AttentionStrategyScope scope(c.strategy);
    {
      const at::NoGradGuard guard;
      const auto y = attend(c, distributed(c, t, mesh), {});
      EXPECT_FALSE(y.requires_grad());
      require(DTensor(y).full_tensor(), wanted, c, "no_grad");
    }
    const c10::InferenceMode guard;
    std::vector<at::Tensor> in;
    for (const auto& x : {t.q, t.k, t.v}) in.push_back(distribute_tensor(x, mesh, {Shard(2)}));
    const CommDebugMode comms;
    const auto y = attend(c, in, {});
    EXPECT_EQ(comms.total("all_gather").calls, 0) << comms.table();
    require(DTensor(y).full_tensor(), wanted, c, "inference");
  });
}

TEST(AttentionEdgeCases, BackwardTwiceAndInAMeshScope) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = small();
    const auto in = distributed(c, tensors_of(c), mesh);
    const MeshScope within(mesh);
    const AttentionStrategyScope scope(c.strategy);
    const auto y = attend(c, in, {});
    const auto once = torch::autograd::grad({y.square().sum()}, in, {}, true);
    const auto twice = torch::autograd::grad({y.square().sum()}, in);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(DTensor(once[i]).to_local(), DTensor(twice[i]).to_local()));
    }
  });
}

// A regular mask that differs between ranks would make them wait for blocks that no rank sends.
TEST(AttentionEdgeCases, RegularMasksAreCompared) {
  EXPECT_THROW(on_mesh({2},
                       [](const DeviceMesh& mesh) {
                         auto c = small();
                         c.options.causal = false;
                         const auto in = distributed(c, tensors_of(c), mesh);
                         const auto mask = at::full({10, 10}, mesh.coordinate()->front() == 1, at::kBool);
                         attend(c, in, mask);
                       }),
               std::exception);
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto c = small();
    c.options.causal = false;
    const auto in = distributed(c, tensors_of(c), mesh);
    const Strict strict;
    EXPECT_THROW(attend(c, in, at::ones({10, 10}, at::kBool)), c10::Error);
    attend(c, in, {});
  });
}

// Per-row documents, as regular tensors and as DTensors, equal plain ATen and are twice differentiable. Mistakes raise
// errors.
TEST(AttentionEdgeCases, DocumentsOfRows) {
  Case c = small();
  c.batch = 3, c.by_aten = false;
  c.rows = {{0, 4}, {0}, {0, 1, 2, 9}};
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    c.strategy = strategy;
    for (const Placements& where : {Placements{}, Placements{Replicate()}, Placements{Shard(0)}}) {
      c.rows_where = where;
      check_case(c);
    }
  }
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto t = tensors_of(c);
    const auto twice = [&](const std::vector<at::Tensor>& in) {
      const auto y = attend(c, in, {});
      const auto first = torch::autograd::grad({y.square().sum()}, in, {}, true, true);
      return torch::autograd::grad({first[0].square().sum() + first[1].sum()}, in);
    };
    std::vector<at::Tensor> regular;
    for (const auto& x : t.inputs(c)) regular.push_back(x.detach().clone().requires_grad_());
    require(attend(c, regular, {}), expected_result(c, regular, {}), c, "regular tensors");
    const auto wanted = twice(regular), found = twice(distributed(c, t, mesh));
    for (std::size_t i = 0; i < 3; ++i) require(DTensor(found[i]).full_tensor(), wanted[i], c, "second derivative");
  });
}

TEST(AttentionEdgeCases, InvalidDocumentsOfRowsRaise) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = small();
    const auto in = distributed(c, tensors_of(c), mesh);
    const auto says = [&](const at::Tensor& rows, const std::string& part) {
      try {
        attention(in[0], in[1], in[2], {.row_cu_seqlens = rows});
        ADD_FAILURE() << "no error about " << part;
      } catch (const c10::Error& e) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
    };
    const auto rows = [](const std::vector<std::int64_t>& row) { return at::tensor(row).expand({2, -1}); };
    says(rows({1, 5}), "of a row from 0 to 10, got [1, 5]");
    says(rows({0, 5, 3}), "of a row from 0 to 10, got [0, 5, 3]");
    says(rows({0, 11}), "of a row from 0 to 10, got [0, 11]");
    const auto regular = at::zeros({2, 4, 10, 4});
    EXPECT_THROW(attention(regular, regular, regular, {.row_cu_seqlens = rows({1, 5})}), c10::Error);
    EXPECT_THROW(attention(in[0], in[1], in[2], {.documents = {0, 11}}), c10::Error);
    says(at::zeros({3, 1}, at::kLong), "int64 [2, D], got Long[3, 1]");
    says(at::zeros({2, 1}), "int64 [2, D], got Float[2, 1]");
  });
}

// Redistributions caused by mismatched operands are refused and counted. Communication of attention itself is not.
TEST(AttentionEdgeCases, ImplicitRedistributionOfOperandsIsRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
      auto c = small(strategy);
      const AttentionStrategyScope scope(strategy);
      {
        auto other = c;
        other.where[1] = {Shard(3)};
        const ImplicitRedistributionScope explicitly;  // without a listener
        EXPECT_THROW(attend(other, distributed(other, tensors_of(other), mesh), {}), c10::Error);
      }
      std::int64_t counted = 0;
      const EventListener listener([&](const Event& e) { counted += e.name == "dtensor::attention" ? e.bytes : 0; },
                                   {Event::Kind::op});
      {
        const ImplicitRedistributionScope explicitly;
        attend(c, distributed(c, tensors_of(c), mesh), {});
        EXPECT_EQ(counted, 0) << to_string(strategy);
        c.where[1] = {Shard(3)};  // k is split differently from v
        const auto in = distributed(c, tensors_of(c), mesh);
        EXPECT_THROW(attend(c, in, {}), c10::Error) << to_string(strategy);
      }
      attend(c, distributed(c, tensors_of(c), mesh), {});
      EXPECT_EQ(counted, 2 * 4 * 10 * 4 * kItem / 4) << to_string(strategy);  // the other rank's quarter of k
    }
  });
}

// Checked mode also runs plain ATen on full tensors. It throws only for a tensor labeled Replicate whose values
// differ.
TEST(AttentionEdgeCases, CheckedComparesWithTheFullTensor) {
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    auto c = small(strategy);
    c.by_aten = false;
    c.options.sinks = at::arange(4, at::kDouble);
    c.rows = {{0, 3}, {0, 5, 8}};
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const Checked checked;
      const auto t = tensors_of(c);
      const auto in = distributed(c, t, mesh);
      const AttentionStrategyScope scope(strategy);
      const auto wanted = expected_result(c, t.inputs(c), {});
      const MeshScope within(mesh);
      const CommDebugMode comms;
      const auto y = attend(c, in, {});
      EXPECT_GE(comms.total("all_gather").calls, 4) << comms.table();  // full q, k, v and result
      require(DTensor(y).full_tensor(), wanted, c, "the result");
    });
  }
  auto c = small();
  EXPECT_THROW(on_mesh(c.mesh,
                       [&](const DeviceMesh& mesh) {
                         const Checked checked;
                         auto in = distributed(c, tensors_of(c), mesh);
                         const auto mine = at::full({2, 4, 10, 4}, mesh.coordinate()->front(), at::kDouble);
                         in[0] = DTensor::from_local(mine, mesh, {Replicate()});
                         attend(c, in, {});
                       }),
               std::exception);
}

TEST(AttentionEdgeCases, ThreeDimensionsEqualOneDevice) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = Draw(4).normal({4, 9, 6});
    const auto d = distribute_tensor(x, mesh, {Shard(1)});
    const CommDebugMode comms;
    const auto y = at::scaled_dot_product_attention(d, d, d, {}, 0, true);
    EXPECT_EQ(comms.total("all_gather").calls, 0) << comms.table();
    expect_close(y, at::scaled_dot_product_attention(x, x, x, {}, 0, true), "three dimensions");
  });
}

TEST(AttentionEdgeCases, ListenersReceiveEvents) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = small();
    const auto in = distributed(c, tensors_of(c), mesh);
    int received = 0;
    const EventListener listener([&](const Event& e) { received += e.name == "dtensor::attention" ? 1 : 0; },
                                 {Event::Kind::op});
    attend(c, in, {});
    EXPECT_EQ(received, 1);
  });
}

// A direct call of the math backend keeps the products and softmax of that backend, which have rules.
TEST(AttentionEdgeCases, MathBackendCalledDirectlyIsCorrect) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = small();
    const auto t = tensors_of(c);
    const auto in = distributed(c, t, mesh);
    const auto y = std::get<0>(at::_scaled_dot_product_attention_math(in[0], in[1], in[2], {}, 0, true));
    expect_close(y.detach(), expected_result(c, {t.q, t.k, t.v}, {}), "math");
    const auto flash = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0, true));
    expect_close(flash.detach(), expected_result(c, {t.q, t.k, t.v}, {}), "the kernel called directly");
  });
}

// The list of moves of explain() counts what attention moves, forward and backward. Queries with another placement
// appear as avoidable redistributions.
TEST(AttentionEdgeCases, ExplainListsBytesMovedByAttention) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = split_case(2, AttentionStrategy::ring);
    const auto t = tensors_of(c);
    const auto in = distributed(c, t, mesh);
    const auto grad = distribute_tensor(t.grad, mesh, {Shard(2)});
    const AttentionStrategyScope scope(c.strategy);
    const std::int64_t others = 2 * c.batch * c.groups * c.keys * c.features * kItem / 2;  // keys and values
    at::Tensor y;
    const auto says = [](const std::string& reported, const std::string& part) {
      EXPECT_NE(reported.find(part), std::string::npos) << part << " in\n" << reported;
    };
    const auto forward = explain([&] { y = attend(c, in, {}); });
    says(forward, "outside any module: " + std::to_string(others) + " bytes\n  dtensor::attention: ");
    EXPECT_EQ(forward.find("avoided"), std::string::npos) << forward;
    const auto backward = explain([&] { torch::autograd::grad({y}, in, {grad}); });
    says(backward, "dtensor::attention: ");
    says(backward,
         "total: " + std::to_string(2 * others) + " bytes");  // keys, values and their gradients
    const auto turned = distribute_tensor(t.q, mesh, {Shard(0)});
    says(explain([&] {
           attend(c, {turned, in[1], in[2]}, {});
         }),
         "    avoided by q in [S(2)] (it is f64[2, 12, 24, 4] on [2] [S(0)])\n");
  });
}

}  // namespace
}  // namespace dtensor::test
