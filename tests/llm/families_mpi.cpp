// Recorded models on processes: logits and greedy tokens equal those of transformers.
#include <cstdio>

#include "dtensor/launch.h"
#include "llm/commands/generate.h"
#include "recorded.h"

namespace {

void check_family(const dtensor::Communicator& world, const std::string& family, const llm::MeshSizes& mesh) {
  const auto expected = recorded::expected(family);
  const auto model = recorded::model(family, mesh, world);
  const auto logits = llm::logits_of(model, expected.tokens).to(at::kDouble);
  const double difference = (logits - expected.logits).abs().max().item<double>();
  TORCH_CHECK(difference <= 1e-5, family, " on ", mesh.str(), ": logits differ by ", difference);
  llm::SampleOptions greedy;
  greedy.max_new_tokens = static_cast<std::int64_t>(expected.greedy.size());
  const auto made = llm::generate(model, world, expected.tokens, greedy, {});
  TORCH_CHECK(made == expected.greedy, family, " on ", mesh.str(),
              ": the greedy tokens differ from the recorded ones, got ", made);
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](dtensor::Communicator world) {
    const bool two = world.size() == 2;
    for (const auto& family : recorded::families()) {
      check_family(world, family, two ? llm::MeshSizes{.tp = 2} : llm::MeshSizes{.shard = 2, .tp = 2});
      if (recorded::has_experts(family)) check_family(world, family, {.dp = two ? 1 : 2, .ep = 2});
    }
    if (world.rank() == 0) std::puts("every family equals transformers");
  });
}
