// Tied parameters whose names are passed to fully_shard in separate calls.
#include <gtest/gtest.h>

#include "parallel_fsdp/tower.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

void train(const at::Tensor& in, const at::Tensor& out, const at::Tensor& ids) {
  at::cross_entropy_loss(at::linear(at::embedding(in, ids), out), ids).backward();
  const at::NoGradGuard no_grad;
  in.sub_(in.grad(), 0.5);
  in.mutable_grad().reset();
}

TEST(FsdpTied, EmbeddingInASeparateUnitStaysTiedToTheHead) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor regular = Draw(1).normal({5, 4}).requires_grad_();
    const auto ids = Draw(2).integers({6}, 5);
    at::Tensor embedding = regular.detach().clone().requires_grad_(), head = embedding;
    fully_shard({{"embedding", &embedding}}, mesh);
    const auto rest = fully_shard({{"head", &head}, {"embedding", &embedding}}, mesh);
    EXPECT_TRUE(head.is_same(embedding));
    EXPECT_TRUE(rest.names().empty());
    for (int step = 0; step < 2; ++step) {
      train(embedding, head, sharded(ids, mesh));
      train(regular, regular, ids);
      expect_close(head.detach(), regular.detach(), c10::str("step ", step));
    }
  });
}

TEST(FsdpTied, UntiedNamesAreAnError) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor embedding = at::ones({5, 4}).requires_grad_(), head = embedding;
    fully_shard({{"embedding", &embedding}}, mesh);
    fully_shard({{"head", &head}}, mesh);
    const auto text = error_of([&] { fully_shard({{"embedding", &embedding}, {"head", &head}}, mesh); });
    EXPECT_NE(text.find("were one tensor"), std::string::npos) << text;
    EXPECT_NE(text.find("'head'"), std::string::npos) << text;
  });
}

// Any function may distribute the first name, and any function the model.
TEST(FsdpTied, ModelsDistributedInSeveralCallsStayTied) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"tp"});
    const auto full = [](const auto&, const auto&) { return Placements{Replicate()}; };
    const std::vector<std::function<void(const NamedTensors&)>> ways = {
        [&](const NamedTensors& list) { nn::distribute(list, mesh, full); },
        [&](const NamedTensors& list) {
          parallelize(list, mesh, {{list[0].first, ReplicateParameter{}}});
        },
        [&](const NamedTensors& list) { fully_shard(list, mesh); }};
    for (std::size_t first = 0; first < ways.size(); ++first) {
      for (std::size_t second = 0; second < ways.size(); ++second) {
        at::Tensor embedding = at::ones({6, 4}).requires_grad_(), head = embedding, other = embedding;
        ways[first]({{"embedding", &embedding}});
        ways[second]({{"head", &head}, {"embedding", &embedding}});
        EXPECT_TRUE(head.is_same(embedding)) << first << second;
        ways[second]({{"other", &other}});  // Belongs to another model.
        EXPECT_FALSE(other.is_same(embedding)) << first << second;
      }
    }
  });
}

}  // namespace
}  // namespace dtensor::test
